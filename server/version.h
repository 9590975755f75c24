/* version.h - what `dormouse --version` and the log tell. */
#ifndef SERVER_VERSION_H
#define SERVER_VERSION_H

#define DORMOUSE_VERSION "0.1.0"

#endif
