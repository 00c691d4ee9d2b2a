/*
 * Settings of an administrator: power limit, clocks, ECC, modes. They are stored in the node's state for all processes,
 * and only root can change them. MIG is in mig.c.
 */
#include <stdio.h>

#include "device.h"

/* Writes a number, or removes what was set where it is negative. */
static nvmlReturn_t set(nvmlDevice_t device, const char *path, const char *key, long value)
{
    char text[32];
    int lock;
    CHECK(device, key);
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    snprintf(text, sizeof text, "%ld", value);
    bool written = state_write(path, device->minor, key, value < 0 ? NULL : text);
    state_unlock(lock);
    return written ? NVML_SUCCESS : NVML_ERROR_NO_PERMISSION;
}

static nvmlReturn_t set_pair(nvmlDevice_t device, const char *first, long one, const char *second, long other)
{
    TRY(set(device, STATE, first, one));
    return set(device, STATE, second, other);
}

static long number_of(const struct device *device, const char *key)
{
    return config_number_or(device->minor, key, 0);
}

EXPORT nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned milliwatts)
{
    CHECK(device, &milliwatts);
    long watts = milliwatts / 1000;
    if (watts < number_of(device, "power_minimum") || watts > number_of(device, "power_maximum"))
        return NVML_ERROR_INVALID_ARGUMENT;
    return set(device, STATE, "power_limit", watts);
}

/* The scope is the GPU, or the module that it shares with a processor. */
EXPORT nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    CHECK(device, value);
    return value->powerScope == 0 ? nvmlDeviceSetPowerManagementLimit(device, value->powerValueMw)
                                  : NVML_ERROR_NOT_SUPPORTED;
}

/* Clocks. */

static long within(const struct device *device, long clock)
{
    long idle = number_of(device, "clock_idle"), maximum = number_of(device, "clock_maximum");
    return clock < idle ? idle : clock > maximum ? maximum : clock;
}

EXPORT nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned lowest, unsigned highest)
{
    CHECK(device, &lowest);
    if (lowest > highest || number_of(device, "architecture") < NVML_ARCH_VOLTA)
        return NVML_ERROR_INVALID_ARGUMENT;
    return set_pair(device, "clock_locked_lowest", within(device, lowest), "clock_locked_highest",
                    within(device, highest));
}

EXPORT nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device)
{
    return set_pair(device, "clock_locked_lowest", -1, "clock_locked_highest", -1);
}

EXPORT nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned lowest, unsigned highest)
{
    CHECK(device, &lowest);
    if (number_of(device, "architecture") < NVML_ARCH_AMPERE)
        return NVML_ERROR_NOT_SUPPORTED;
    if (lowest > highest)
        return NVML_ERROR_INVALID_ARGUMENT;
    return set_pair(device, "clock_memory_locked_lowest", lowest, "clock_memory_locked_highest", highest);
}

EXPORT nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device)
{
    return set_pair(device, "clock_memory_locked_lowest", -1, "clock_memory_locked_highest", -1);
}

EXPORT nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory, unsigned graphics)
{
    unsigned clocks[512], count = sizeof clocks / sizeof *clocks;
    TRY(nvmlDeviceGetSupportedGraphicsClocks(device, memory, &count, clocks));
    for (unsigned i = 0; i < count; i++)
        if (clocks[i] == graphics)
            return set_pair(device, "clock_application", graphics, "clock_application_memory", memory);
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    return set_pair(device, "clock_application", -1, "clock_application_memory", -1);
}

/* Modes. ECC changes with the next boot: the node's start-up applies the pending value. */

EXPORT nvmlDeviceSetEccMode(nvmlDevice_t device, unsigned enabled)
{
    unsigned now;
    TRY(device_unsigned(device, "ecc_mode", &now));
    return enabled > 1 ? NVML_ERROR_INVALID_ARGUMENT : set(device, KEPT_STATE, "ecc_mode_pending", enabled);
}

EXPORT nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    enum { EXCLUSIVE_THREAD = 1, EXCLUSIVE_PROCESS = 3 };
    CHECK(device, &mode);
    if (mode > EXCLUSIVE_PROCESS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return mode == EXCLUSIVE_THREAD ? NVML_ERROR_NOT_SUPPORTED : set(device, STATE, "compute_mode", mode);
}

EXPORT nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode)
{
    return mode > 1 ? NVML_ERROR_INVALID_ARGUMENT : set(device, STATE, "persistence_mode", mode);
}

EXPORT nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, unsigned counter)
{
    CHECK(device, &counter);
    if (!device_ecc(device))
        return NVML_ERROR_NOT_SUPPORTED;
    if (counter == NVML_VOLATILE_ECC)
        return set_pair(device, "ecc_volatile_corrected", -1, "ecc_volatile_uncorrected", -1);
    TRY(set(device, KEPT_STATE, "ecc_aggregate_corrected", -1));
    return set(device, KEPT_STATE, "ecc_aggregate_uncorrected", -1);
}

/*
 * A reset applies pending settings, and clears other settings, counters and those failures that a reset repairs. It is
 * refused while a process computes.
 */
nvmlReturn_t device_reset(nvmlDevice_t device)
{
    static const char *const forgotten[] = {
        "power_limit", "clock_locked_lowest", "clock_locked_highest", "clock_memory_locked_lowest",
        "clock_memory_locked_highest", "clock_application", "clock_application_memory", "compute_mode",
        "mig_gpu_instances", "mig_compute_instances", "ecc_volatile_corrected", "ecc_volatile_uncorrected",
        "remapped_pending", "retired_pending", "reset_required", "recovery_action",
        "nvlink_down", "nvlink_errors", "fault",
    };
    unsigned ecc, pending;
    int lock;
    CHECK_EITHER(device, forgotten);
    if (device->parent)
        return NVML_ERROR_NOT_SUPPORTED;
    if (device_busy(device))
        return NVML_ERROR_IN_USE;
    if (nvmlDeviceGetEccMode(device, &ecc, &pending) == NVML_SUCCESS && ecc != pending)
        TRY(set(device, STATE, "ecc_mode", pending));
    if (!state_lock(&lock))
        return NVML_ERROR_NO_PERMISSION;
    mig_remove_all(device);
    for (unsigned i = 0; i < sizeof forgotten / sizeof *forgotten; i++)
        state_write(STATE, device->minor, forgotten[i], NULL);
    state_unlock(lock);
    return NVML_SUCCESS;
}
