#include "config.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRIES = 1024, KEY = 64, FILES = 3 };

/* In order of reading: the last line with a key counts. */
static const char *const paths[FILES] = {LINKED(""), LINKED("_kept"), LINKED("_state")};

static struct entry {
    char key[KEY];
    char value[CONFIG_VALUE];
} entries[ENTRIES];
static int entry_count;
static struct stat seen[FILES]; /* all zero where there was no file */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[ROOTED / 2]; /* empty on the node itself */

/* The root is what precedes /usr/lib or /lib in the library's own path, if the node's configuration is there. */
static void find_root(void)
{
    Dl_info self;
    struct stat status;
    char place[ROOTED];
    if (!dladdr((void *)find_root, &self) || !self.dli_fname)
        return;
    const char *end = strstr(self.dli_fname, "/usr/lib");
    end = end ? end : strstr(self.dli_fname, "/lib");
    if (!end || end - self.dli_fname >= (long)sizeof root)
        return;
    snprintf(place, sizeof place, "%.*s%s", (int)(end - self.dli_fname), self.dli_fname, LINKED(""));
    if (stat(place, &status) == 0)
        snprintf(root, sizeof root, "%.*s", (int)(end - self.dli_fname), self.dli_fname);
}

const char *rooted(const char *path, char place[ROOTED])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_root);
    snprintf(place, ROOTED, "%s%s", root, path);
    return place;
}

static char *trim(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static void read_entries(FILE *file)
{
    char line[KEY + CONFIG_VALUE];
    while (entry_count < ENTRIES && fgets(line, sizeof line, file)) {
        char *key = trim(line);
        char *equals = strchr(key, '=');
        if (*key == '#' || !equals)
            continue;
        *equals = '\0';
        struct entry *entry = &entries[entry_count++];
        snprintf(entry->key, sizeof entry->key, "%.*s", KEY - 1, trim(key));
        snprintf(entry->value, sizeof entry->value, "%.*s", CONFIG_VALUE - 1, trim(equals + 1));
    }
}

static bool same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Called with the lock held. */
static void refresh(void)
{
    struct stat now[FILES] = {0};
    char place[ROOTED];
    bool changed = false;
    for (int i = 0; i < FILES; i++) {
        if (stat(rooted(paths[i], place), &now[i]) != 0)
            memset(&now[i], 0, sizeof now[i]);
        changed = changed || !same(&now[i], &seen[i]);
    }
    if (!changed)
        return;
    entry_count = 0;
    for (int i = 0; i < FILES; i++) {
        FILE *file = fopen(rooted(paths[i], place), "re");
        if (!file)
            continue;
        read_entries(file);
        fclose(file);
    }
    memcpy(seen, now, sizeof seen);
}

/* Called with the lock held. */
static const char *find(const char *key)
{
    for (int i = entry_count - 1; i >= 0; i--)
        if (strcmp(entries[i].key, key) == 0)
            return entries[i].value;
    return NULL;
}

static const char *find_own(int minor, const char *key)
{
    char own[KEY + 16];
    if (minor == NO_DEVICE)
        return NULL;
    snprintf(own, sizeof own, "%s.%d", key, minor);
    return find(own);
}

bool config_text(int minor, const char *key, char value[CONFIG_VALUE])
{
    pthread_mutex_lock(&lock);
    refresh();
    const char *found = find_own(minor, key);
    if (!found)
        found = find(key);
    bool known = found && strcmp(found, "none") != 0;
    if (known)
        snprintf(value, CONFIG_VALUE, "%s", found);
    pthread_mutex_unlock(&lock);
    return known;
}

bool config_number(int minor, const char *key, long *value)
{
    char text[CONFIG_VALUE], *end;
    if (!config_text(minor, key, text))
        return false;
    long number = strtol(text, &end, 0);
    if (end == text || *end)
        return false;
    *value = number;
    return true;
}

long config_number_or(int minor, const char *key, long fallback)
{
    config_number(minor, key, &fallback);
    return fallback;
}

bool config_has_own(int minor, const char *key)
{
    pthread_mutex_lock(&lock);
    refresh();
    bool found = find_own(minor, key) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

bool state_lock(int *lock_file)
{
    /* The lab makes the directory. If it is missing, as in a container, nothing can be set. */
    char place[ROOTED];
    rooted(STATE_DIRECTORY "/lock", place);
    *lock_file = geteuid() == 0 ? open(place, O_RDWR | O_CREAT | O_CLOEXEC, 0644) : -1;
    return *lock_file >= 0 && flock(*lock_file, LOCK_EX) == 0;
}

void state_unlock(int lock_file)
{
    close(lock_file);
}

bool state_write(const char *path, int minor, const char *key, const char *value)
{
    char line[KEY + CONFIG_VALUE], own[KEY + 16], place[ROOTED], new_path[ROOTED + 8];
    size_t length = (size_t)snprintf(own, sizeof own, "%s.%d=", key, minor);
    snprintf(new_path, sizeof new_path, "%s.new", rooted(path, place));
    FILE *new = fopen(new_path, "we"), *old = fopen(place, "re");
    if (!new)
        return false;
    while (old && fgets(line, sizeof line, old))
        if (strncmp(line, own, length) != 0)
            fputs(line, new);
    if (old)
        fclose(old);
    if (value)
        fprintf(new, "%s%s\n", own, value);
    return fclose(new) == 0 && rename(new_path, place) == 0;
}
