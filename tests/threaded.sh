#!/bin/sh
# threaded.sh PROGRAM... - those of the programs that can start a thread: they name what starts one.
for p; do
    nm "$p" | grep -qE ' (pthread_create|MHD_start_daemon)(@|$)' && printf '%s\n' "$p"
done
