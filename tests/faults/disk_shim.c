/* Makes one kind of file operation fail inside one folder, as a failing disk or file server does. Load by LD_PRELOAD.

   SHIM_FOLDER: the folder. SHIM_CALL: the kind: open, write, fsync, rename, unlink, mkdir, stat or any. SHIM_ERRNO: the
   errno to set. SHIM_FIRST, SHIM_LAST: the first and last call that fail; each process counts its calls from 1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int counted;

static int inside(int at, const char *path) {
    const char *folder = getenv("SHIM_FOLDER");
    char whole[8192], link[64];
    if (!folder || !path)
        return 0;
    if (path[0] != '/' && at >= 0) { /* Relative to an open folder, as shutil.rmtree names its files. */
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, whole, sizeof whole - 1);
        if (length < 0)
            return 0;
        whole[length] = 0;
        path = whole;
    }
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == 0 || path[length] == '/');
}

static int fails(const char *call, int at, const char *path) {
    const char *wanted = getenv("SHIM_CALL"), *first = getenv("SHIM_FIRST"), *last = getenv("SHIM_LAST");
    if (!wanted || !first || !last || (strcmp(wanted, call) && strcmp(wanted, "any")) || !inside(at, path))
        return 0;
    int number = __atomic_add_fetch(&counted, 1, __ATOMIC_SEQ_CST);
    if (number < atoi(first) || number > atoi(last))
        return 0;
    errno = atoi(getenv("SHIM_ERRNO"));
    return 1;
}

static int fails_at(const char *call, int descriptor) { return fails(call, descriptor, ""); }

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(mode, flags) va_list list; va_start(list, flags); mode_t mode = (flags) & O_CREAT ? va_arg(list, mode_t) : 0; va_end(list)

int open(const char *path, int flags, ...) { MODE(mode, flags); return fails("open", -1, path) ? -1 : NEXT(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(mode, flags); return fails("open", -1, path) ? -1 : NEXT(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(mode, flags); return fails("open", at, path) ? -1 : NEXT(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(mode, flags); return fails("open", at, path) ? -1 : NEXT(openat64)(at, path, flags, mode); }
ssize_t write(int to, const void *from, size_t size) { return fails_at("write", to) ? -1 : NEXT(write)(to, from, size); }
int fsync(int to) { return fails_at("fsync", to) ? -1 : NEXT(fsync)(to); }
int rename(const char *from, const char *to) { return fails("rename", -1, from) ? -1 : NEXT(rename)(from, to); }
int renameat(int at, const char *from, int in, const char *to) { return fails("rename", at, from) ? -1 : NEXT(renameat)(at, from, in, to); }
int unlink(const char *path) { return fails("unlink", -1, path) ? -1 : NEXT(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { return fails("unlink", at, path) ? -1 : NEXT(unlinkat)(at, path, flags); }
int rmdir(const char *path) { return fails("unlink", -1, path) ? -1 : NEXT(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", -1, path) ? -1 : NEXT(mkdir)(path, mode); }
int stat(const char *path, struct stat *to) { return fails("stat", -1, path) ? -1 : NEXT(stat)(path, to); }
int stat64(const char *path, struct stat64 *to) { return fails("stat", -1, path) ? -1 : NEXT(stat64)(path, to); }
int lstat(const char *path, struct stat *to) { return fails("stat", -1, path) ? -1 : NEXT(lstat)(path, to); }
int lstat64(const char *path, struct stat64 *to) { return fails("stat", -1, path) ? -1 : NEXT(lstat64)(path, to); }
int fstat(int of, struct stat *to) { return fails_at("stat", of) ? -1 : NEXT(fstat)(of, to); }
int fstat64(int of, struct stat64 *to) { return fails_at("stat", of) ? -1 : NEXT(fstat64)(of, to); }
