/* The devices that this process may see, as decided when NVML was initialised. */
#ifndef SIMULATED_DEVICE_H
#define SIMULATED_DEVICE_H

#include <stdbool.h>

#include "config.h"
#include "nvml.h"

enum { MAX_DEVICES = 32, MIB = 1024 * 1024 };

struct device {
    int index;           /* among the visible devices */
    int minor;           /* of /dev/nvidiaN; the N in the configuration's `key.N` */
    char uuid[48];       /* stable for a node and minor */
    char serial[16];
    unsigned domain, bus;
    char bus_id[32];     /* 00000000:07:00.0 */
};

/* NVML_SUCCESS if the library is in use, the handle is one of ours, the device is not lost and `out` is not NULL. */
nvmlReturn_t device_check(nvmlDevice_t device, const void *out);

#define CHECK(device, out)                                                                                             \
    do {                                                                                                               \
        nvmlReturn_t status_ = device_check(device, out);                                                              \
        if (status_ != NVML_SUCCESS)                                                                                   \
            return status_;                                                                                            \
    } while (0)

int device_count(void);
struct device *device_at(int index);
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
unsigned long long device_ecc_errors(const struct device *device, unsigned error_type);
bool device_remaps_rows(const struct device *device);       /* Ampere and later; older models retire pages */
bool device_switched(const struct device *device);          /* its NVLinks end at NVSwitches */

/* Public functions that other files of the library call. */
EXPORT nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out);
EXPORT nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts);
EXPORT nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active);
EXPORT nvmlSystemGetDriverVersion(char *out, unsigned length);
EXPORT nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level);

#endif
