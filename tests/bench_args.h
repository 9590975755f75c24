/* bench_args.h - the arguments of a benchmark: its usage where it is asked for, a sentence and an
 * exit code where they are wrong.
 *
 * Exit     0 after --help, 2 for arguments that mean nothing, 1 for what is not there.
 * Threads  one, at start.
 */
#ifndef TESTS_BENCH_ARGS_H
#define TESTS_BENCH_ARGS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* `usage` begins "NAME [DIR]" and says in a line or two what is measured; it is so many
 * arguments that the program takes at most, none of them a flag. */
static inline void bench_args(int argc, char **argv, int most, const char *usage)
{
    for (int i = 1; i < argc; i++) {
        bool help = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
        if (!help && argv[i][0] != '-' && i <= most) continue;
        FILE *to = help ? stdout : stderr;
        if (!help) fprintf(to, "%s is no argument of this benchmark.\n", argv[i]);
        fprintf(to, "Usage: %s\n", usage);
        exit(help ? 0 : 2);
    }
}

/* The model's folder: `named`, which must be there, or where NULL the one that `make model` gets;
 * without that there is nothing to measure, and NULL is the answer. */
static inline const char *bench_model_dir(const char *program, const char *named)
{
    const char *dir = named ? named : "models/smollm2-135m-instruct";
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", dir);
    if (access(path, R_OK) == 0) return dir;
    if (!named) {
        printf("%s: skipped, %s is not there (make model)\n", program, dir);
        return NULL;
    }
    fprintf(stderr, "%s: %s cannot be read; expected the folder of a model\n", program,
            path);
    exit(1);
}

#endif
