/* Shows a program /proc/PID/cgroup as a host with version 2 of cgroups alone has it: the line "0::" and no other.
 *
 * A lab node on a host with version 1 has the unified hierarchy to itself (../node/init), but the kernel lists the host's
 * other hierarchies, too, and Slurm's plugin for version 2 refuses to start where it reads of them. All programs preload it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static int is_cgroup(const char *path) { return path && fnmatch("/proc/*/cgroup", path, FNM_PATHNAME) == 0; }

/* Return a descriptor of the filtered file, at its beginning, or -1 with errno. */
static int unified(const char *path, int flags) {
    FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    FILE *from = next(path, "re");
    char line[4096 + 64];
    int to;
    if (!from) return -1;
    to = memfd_create("cgroup", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    while (to >= 0 && fgets(line, sizeof line, from)) {
        size_t length = strlen(line);
        if (strncmp(line, "0::", 3) == 0 && write(to, line, length) != (ssize_t)length) {
            close(to);
            to = -1;
        }
    }
    fclose(from);
    if (to >= 0) lseek(to, 0, SEEK_SET);
    return to;
}

#define FOPEN(name)                                                                                              \
    EXPORT FILE *name(const char *path, const char *mode) {                                                      \
        FILE *(*next)(const char *, const char *) = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name); \
        int file;                                                                                                \
        if (!is_cgroup(path)) return next(path, mode);                                                           \
        file = unified(path, strchr(mode, 'e') ? O_CLOEXEC : 0);                                                 \
        return file < 0 ? NULL : fdopen(file, "r");                                                              \
    }

#define OPEN(name)                                                                                   \
    EXPORT int name(const char *path, int flags, ...) {                                              \
        int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name); \
        va_list rest;                                                                                \
        mode_t mode;                                                                                 \
        if (is_cgroup(path)) return unified(path, flags);                                            \
        va_start(rest, flags);                                                                       \
        mode = va_arg(rest, mode_t);                                                                 \
        va_end(rest);                                                                                \
        return next(path, flags, mode);                                                              \
    }

FOPEN(fopen)
FOPEN(fopen64)
OPEN(open)
OPEN(open64)
