/* The devices that this process may see, as decided when NVML was initialised. */
#ifndef SIMULATED_DEVICE_H
#define SIMULATED_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "nvml.h"

enum { MAX_DEVICES = 32, MIB = 1024 * 1024 };

struct device {
    struct device *parent; /* of a MIG device: the GPU; NULL for a GPU */
    unsigned gpu_instance, compute_instance; /* of a MIG device */
    int index;           /* among the visible devices, of a MIG device among those of its GPU */
    int minor;           /* of /dev/nvidiaN; the N in the configuration's `key.N` */
    char uuid[48];       /* stable for a node and minor */
    char serial[16];
    unsigned domain, bus;
    char bus_id[32];     /* 00000000:07:00.0 */
};

/*
 * NVML_SUCCESS if the library is in use, the handle is valid, the device is not lost and `out` is not NULL.
 * A MIG device passes the first only; the second is for what a whole GPU answers.
 */
nvmlReturn_t handle_check(nvmlDevice_t device, const void *out);
nvmlReturn_t device_check(nvmlDevice_t device, const void *out);

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        nvmlReturn_t status_ = (call);                                                                                 \
        if (status_ != NVML_SUCCESS)                                                                                   \
            return status_;                                                                                            \
    } while (0)
#define CHECK(device, out) TRY(device_check(device, out))
#define CHECK_EITHER(device, out) TRY(handle_check(device, out))

int device_count(void);
struct device *device_at(int index);
uint64_t device_hash(const char *text, uint64_t salt);
void device_uuid(const char *prefix, const char *seed, char uuid[48]); /* of the form of a random one, made from seed */
int device_open_error(const char *path); /* 0 if the caller may open the device file, else errno */
unsigned device_bus(int minor, unsigned *domain);   /* the PCI bus of any device of the node, visible or not */

/* Copies a text or number of the configuration out, with the answers and errors that NVML gives. */
nvmlReturn_t device_copy_text(const char *text, char *out, unsigned length);
nvmlReturn_t device_text(nvmlDevice_t device, const char *key, char *out, unsigned length);
nvmlReturn_t device_unsigned(nvmlDevice_t device, const char *key, unsigned *out);

/* A number that differs a little between devices and never changes: 0 <= result < range. */
unsigned device_spread(const struct device *device, unsigned range);

long device_temperature(const struct device *device);       /* degrees Celsius */
/* Ada and later: degrees between `celsius` and the highest operating temperature. False for older models. */
bool device_margin(const struct device *device, long celsius, long *margin);
unsigned device_power_milliwatts(const struct device *device);
bool device_busy(const struct device *device);
bool device_ecc(const struct device *device);               /* error correction is there and switched on */
unsigned long long device_ecc_errors(const struct device *device, unsigned error_type, unsigned counter);
unsigned long long device_violation(const struct device *device, unsigned policy); /* nanoseconds */
bool device_remaps_rows(const struct device *device);       /* Ampere and later; older models retire pages */
bool device_switched(const struct device *device);          /* its NVLinks end at NVSwitches */

nvmlReturn_t device_reset(nvmlDevice_t device);
nvmlReturn_t link_errors(nvmlDevice_t device, unsigned link, unsigned long long *out);

/* MIG devices, by handle; see mig.c. */
bool mig_enabled(const struct device *device);
bool mig_exists(nvmlDevice_t handle);   /* the handle is that of a MIG device which is there and may be opened */
nvmlDevice_t mig_find(const char *uuid);
void mig_remove_all(const struct device *device); /* what grants access to instances, before they are forgotten */
nvmlReturn_t mig_name(nvmlDevice_t device, char *out, unsigned length);
unsigned long long mig_memory(nvmlDevice_t device); /* bytes */

/* Public functions that other files of the library call. */
EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out);
EXPORT nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out);
EXPORT nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length);
EXPORT nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts);
EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
EXPORT nvmlSystemGetDriverVersion(char *out, unsigned length);
EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level);
EXPORT nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count, unsigned *clocks);
EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out);
EXPORT nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out);
EXPORT nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out);
EXPORT nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending);

#endif
