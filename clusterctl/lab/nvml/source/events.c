/*
 * Events: each line `minor type number` in the node's list is delivered to processes that wait for this type of this
 * device, if it was appended after the event set was made.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"

#define EVENTS STATE_DIRECTORY "/events"
enum { ECC_SINGLE = 1, ECC_DOUBLE = 2, XID_CRITICAL = 8, SUPPORTED = ECC_SINGLE | ECC_DOUBLE | XID_CRITICAL };

struct event_set {
    long position; /* in the list; earlier events were delivered, or are older than the set */
    struct {
        nvmlDevice_t device;
        unsigned long long types;
    } wanted[MAX_DEVICES];
    int count;
};

EXPORT nvmlEventSetCreate(nvmlEventSet_t *set)
{
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    if (!*set)
        return NVML_ERROR_MEMORY;
    char place[ROOTED];
    FILE *file = fopen(rooted(EVENTS, place), "re");
    if (file) {
        fseek(file, 0, SEEK_END);
        (*set)->position = ftell(file);
        fclose(file);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlEventSetFree(nvmlEventSet_t set)
{
    free(set);
    return NVML_SUCCESS;
}

/* Reads on to the next event that is waited for; false at the list's end. */
static bool next(struct event_set *set, nvmlEventData_t *data)
{
    int minor;
    unsigned long long type, number;
    char line[64], place[ROOTED];
    FILE *file = fopen(rooted(EVENTS, place), "re");
    bool found = false;
    if (!file)
        return false;
    fseek(file, set->position, SEEK_SET);
    while (!found && fgets(line, sizeof line, file)) {
        set->position = ftell(file);
        if (sscanf(line, "%d %llu %llu", &minor, &type, &number) != 3)
            continue;
        for (int i = 0; i < set->count && !found; i++)
            if (set->wanted[i].device->minor == minor && set->wanted[i].types & type) {
                *data = (nvmlEventData_t){set->wanted[i].device, type, number, 0xFFFFFFFF, 0xFFFFFFFF};
                found = true;
            }
    }
    fclose(file);
    return found;
}

EXPORT nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned milliseconds)
{
    enum { PAUSE = 50 }; /* milliseconds between two looks at the list */
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned waited = 0; !next(set, data); waited += PAUSE) {
        unsigned rest = milliseconds - waited;
        if (waited >= milliseconds)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){0, (rest < PAUSE ? rest : PAUSE) * 1000000L}, NULL);
    }
    return NVML_SUCCESS;
}

ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2);

EXPORT nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    CHECK(device, types);
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    CHECK(device, set);
    if (types & ~(unsigned long long)SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < set->count; i++)
        if (set->wanted[i].device == device) {
            set->wanted[i].types |= types;
            return NVML_SUCCESS;
        }
    if (set->count == MAX_DEVICES)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    set->wanted[set->count].device = device;
    set->wanted[set->count++].types = types;
    return NVML_SUCCESS;
}
