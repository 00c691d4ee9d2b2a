/* Initialisation, visibility and handles: what a caller sees, and under which index. */
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct device devices[MAX_DEVICES];
static int visible;
static int users; /* nvmlInit calls not yet followed by nvmlShutdown */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* FNV-1a followed by splitmix64's finaliser: well mixed, and the same on every machine. */
uint64_t device_hash(const char *text, uint64_t salt)
{
    uint64_t value = 0xcbf29ce484222325u ^ salt;
    for (; *text; text++)
        value = (value ^ (unsigned char)*text) * 0x100000001b3u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

/* A profile names the buses of eight devices, in hexadecimal; further ones repeat them in the next PCI domain. */
unsigned device_bus(int minor, unsigned *domain)
{
    char buses[CONFIG_VALUE] = "", *at = buses;
    config_text(NO_DEVICE, "pci_buses", buses);
    for (int skip = minor % 8; skip > 0 && at; skip--)
        at = (at = strchr(at, ',')) ? at + 1 : NULL;
    *domain = (unsigned)minor / 8;
    return at && *at ? (unsigned)strtoul(at, NULL, 16) & 0xff : (unsigned)minor % 8 + 1;
}

/* The version and variant digits are those of a random UUID (RFC 9562), as on real devices. */
void device_uuid(const char *prefix, const char *seed, char uuid[48])
{
    uint64_t high = device_hash(seed, 1), low = device_hash(seed, 2);
    snprintf(uuid, 48, "%s-%08x-%04x-4%03x-%04x-%012llx", prefix, (unsigned)(high >> 32),
             (unsigned)(high >> 16 & 0xffff), (unsigned)(high & 0xfff), (unsigned)(0x8000 | (low >> 48 & 0x3fff)),
             (unsigned long long)(low & 0xffffffffffff));
}

static void describe(struct device *device, int minor)
{
    char seed[CONFIG_VALUE] = "", salted[CONFIG_VALUE + 16];
    if (!config_text(NO_DEVICE, "node_seed", seed))
        gethostname(seed, sizeof seed - 1);
    snprintf(salted, sizeof salted, "%s/%d", seed, minor);
    device->minor = minor;
    device_uuid("GPU", salted, device->uuid);
    snprintf(device->serial, sizeof device->serial, "1%012llu",
             (unsigned long long)(device_hash(salted, 3) % 1000000000000));
    device->bus = device_bus(minor, &device->domain);
    snprintf(device->bus_id, sizeof device->bus_id, "%08X:%02X:00.0", device->domain, device->bus);
}

/* ENXIO and ENODEV: permitted, but the file has no driver. Capability files can only be read. */
int device_open_error(const char *path)
{
    int file = open(path, (strstr(path, "nvidia-cap") ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (file >= 0) {
        close(file);
        return 0;
    }
    return errno == ENXIO || errno == ENODEV ? 0 : errno;
}

static bool has_fault(int minor, const char *fault)
{
    char value[CONFIG_VALUE];
    return config_text(minor, "fault", value) && strcmp(value, fault) == 0;
}

/* A lost device leaves a gap in the numbers: the others keep their numbers until the driver is loaded again. */
static void find_visible(void)
{
    long total = config_number_or(NO_DEVICE, "gpus", 0);
    int number = 0;
    visible = 0;
    for (int minor = 0; minor < total && visible < MAX_DEVICES; minor++) {
        char path[32];
        snprintf(path, sizeof path, "/dev/nvidia%d", minor);
        if (device_open_error(path) != 0)
            continue;
        int index = number++;
        if (has_fault(minor, "gone"))
            continue;
        describe(&devices[visible], minor);
        devices[visible].index = index;
        visible++;
    }
}

EXPORT nvmlInitWithFlags(unsigned flags)
{
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    if (users == 0) {
        int error = device_open_error("/dev/nvidiactl");
        if (config_number_or(NO_DEVICE, "gpus", 0) <= 0 || error == ENOENT)
            result = NVML_ERROR_DRIVER_NOT_LOADED;
        else if (error != 0)
            result = NVML_ERROR_NO_PERMISSION;
        else
            find_visible();
        if (flags & NVML_INIT_FLAG_NO_GPUS)
            visible = 0;
    }
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

ALIAS(nvmlInit, nvmlInit_v2);

EXPORT nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&lock);
    if (users > 0) {
        users--;
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t handle_check(nvmlDevice_t device, const void *out)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!out || ((device < devices || device >= devices + visible) && !mig_exists(device)))
        return NVML_ERROR_INVALID_ARGUMENT;
    return has_fault(device->minor, "lost") ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn_t device_check(nvmlDevice_t device, const void *out)
{
    TRY(handle_check(device, out));
    if (device->parent)
        return NVML_ERROR_NOT_SUPPORTED;
    return has_fault(device->minor, "reset") ? NVML_ERROR_RESET_REQUIRED : NVML_SUCCESS;
}

int device_count(void)
{
    return users > 0 ? visible : 0;
}

struct device *device_at(int index)
{
    return &devices[index];
}

unsigned device_spread(const struct device *device, unsigned range)
{
    return (unsigned)(device_hash(device->uuid, 4) % range);
}

EXPORT nvmlDeviceGetCount_v2(unsigned *count)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned)visible;
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

static nvmlReturn_t give(struct device *found, nvmlDevice_t *out)
{
    CHECK_EITHER(found, out);
    *out = found;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    return index < (unsigned)visible ? give(&devices[index], out) : NVML_ERROR_INVALID_ARGUMENT;
}

ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

EXPORT nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    for (int i = 0; uuid && i < device_count(); i++)
        if (strcmp(devices[i].uuid, uuid) == 0)
            return give(&devices[i], out);
    nvmlDevice_t mig = uuid ? mig_find(uuid) : NULL;
    if (mig)
        return give(mig, out);
    return users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    for (int i = 0; serial && i < device_count(); i++)
        if (strcmp(devices[i].serial, serial) == 0)
            return give(&devices[i], out);
    return users == 0 ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_NOT_FOUND;
}

/* Accepts every spelling that the real library does: domain of four or eight digits or none, with function or not. */
EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out)
{
    unsigned domain = 0, bus = 0, slot = 0;
    if (users == 0)
        return NVML_ERROR_UNINITIALIZED;
    if (!bus_id)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < visible; i++)
        if (devices[i].domain == domain && devices[i].bus == bus && slot == 0)
            return give(&devices[i], out);
    return NVML_ERROR_NOT_FOUND;
}

ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);
