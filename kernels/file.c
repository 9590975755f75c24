#include "kernels/file.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_open(int *fd, const char *path, struct err *err)
{
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return err_set(err, -errno, "%s cannot be opened: %s", path, strerror(errno));
    struct stat st;
    int rc = 0;
    if (fstat(opened, &st) < 0)
        rc = err_set(err, -errno, "%s cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = err_set(err, -EINVAL, "%s is not a regular file", path);
    if (rc < 0)
        close(opened);
    else
        *fd = opened;
    return rc;
}
