#include "config.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { ENTRIES = 512, KEY = 64 };

static struct entry {
    char key[KEY];
    char value[CONFIG_VALUE];
} entries[ENTRIES];
static int entry_count;
static bool present;
static struct stat seen;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

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
    entry_count = 0;
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

/* Called with the lock held. */
static void refresh(void)
{
    struct stat now;
    if (stat(CONFIG_PATH, &now) != 0) {
        present = false;
        entry_count = 0;
        return;
    }
    if (present && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(CONFIG_PATH, "re");
    present = file != NULL;
    entry_count = 0;
    if (!file)
        return;
    read_entries(file);
    fclose(file);
    seen = now;
}

/* Called with the lock held. The last line with a key counts, so a node's own lines can follow the profile's. */
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
