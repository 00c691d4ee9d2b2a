/* ECC errors and their repair, and how long the clocks were reduced. */
#include <string.h>
#include <time.h>

#include "device.h"

static unsigned count_of(const struct device *device, const char *key)
{
    return (unsigned)config_number_or(device->minor, key, 0);
}

bool device_ecc(const struct device *device)
{
    return count_of(device, "ecc_mode") == 1;
}

unsigned long long device_ecc_errors(const struct device *device, unsigned error_type, unsigned counter)
{
    static const char *const keys[2][2] = {{"ecc_volatile_corrected", "ecc_aggregate_corrected"},
                                           {"ecc_volatile_uncorrected", "ecc_aggregate_uncorrected"}};
    return count_of(device, keys[error_type != NVML_MEMORY_ERROR_CORRECTED][counter != NVML_VOLATILE_ECC]);
}

EXPORT nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, unsigned long long *out)
{
    CHECK_EITHER(device, out);
    if (!device_ecc(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = device->parent ? 0 : device_ecc_errors(device, type, counter); /* no errors in an instance */
    return NVML_SUCCESS;
}

/* The location that counts is the DRAM. Models before Ampere also have caches and registers, later ones only SRAM. */
EXPORT nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter, unsigned location,
                                       unsigned long long *out)
{
    if (location >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    TRY(nvmlDeviceGetTotalEccErrors(device, type, counter, out));
    if (device_remaps_rows(device) && location != NVML_MEMORY_LOCATION_DRAM && location != NVML_MEMORY_LOCATION_SRAM)
        return NVML_ERROR_NOT_SUPPORTED;
    if (location != NVML_MEMORY_LOCATION_DRAM)
        *out = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *out)
{
    CHECK(device, out);
    if (!device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out->counts, 0, sizeof out->counts);
    out->thresholdExceeded = 0;
    return NVML_SUCCESS;
}

/* Rows, from Ampere on: a spare one takes the place of one with errors at the next reset. */

bool device_remaps_rows(const struct device *device)
{
    return config_number_or(device->minor, "architecture", 0) >= NVML_ARCH_AMPERE;
}

EXPORT nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failure)
{
    CHECK(device, corrected);
    if (!device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = count_of(device, "remapped_corrected");
    *uncorrected = count_of(device, "remapped_uncorrected");
    *pending = count_of(device, "remapped_pending");
    *failure = count_of(device, "remapped_failure");
    return NVML_SUCCESS;
}

/* Banks by how many of their spare rows are left: every remapped row is one of another bank, a failure has used up one. */
EXPORT nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    enum { BANKS = 640, HOPPER_BANKS = 2560 };
    CHECK(device, out);
    if (!device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->high = count_of(device, "remapped_corrected") + count_of(device, "remapped_uncorrected");
    out->none = count_of(device, "remapped_failure");
    bool hopper = config_number_or(device->minor, "architecture", 0) >= NVML_ARCH_HOPPER;
    out->max = (hopper ? HOPPER_BANKS : BANKS) - out->high - out->none;
    return NVML_SUCCESS;
}

/* Pages, of the models before Ampere: they are retired, for many corrected errors or for one that could not be. */

EXPORT nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, unsigned long long *addresses)
{
    enum { MULTIPLE_CORRECTED, UNCORRECTED, PAGE = 4096 };
    CHECK(device, count);
    if (device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = *count;
    *count = cause == UNCORRECTED ? count_of(device, "retired_pages") : 0;
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; addresses && i < *count; i++)
        addresses[i] = (device_spread(device, 1 << 20) + i) * (unsigned long long)PAGE;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                    unsigned long long *addresses, unsigned long long *timestamps)
{
    TRY(nvmlDeviceGetRetiredPages(device, cause, count, addresses));
    for (unsigned i = 0; timestamps && i < *count; i++)
        timestamps[i] = (unsigned long long)time(NULL) * 1000000;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out)
{
    CHECK(device, out);
    if (device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = count_of(device, "retired_pending");
    return NVML_SUCCESS;
}

/* How long clocks were held down for power or heat: since the second of the epoch that the configuration gives. */

unsigned long long device_violation(const struct device *device, unsigned policy)
{
    static const char *const keys[] = {"violation_power_since", "violation_thermal_since"};
    long since;
    if (policy >= sizeof keys / sizeof *keys || !config_number(device->minor, keys[policy], &since))
        return 0;
    return (unsigned long long)(time(NULL) - since) * 1000000000;
}

EXPORT nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *out)
{
    enum { RELIABILITY = 5, APPLICATION_CLOCKS = 10, BASE_CLOCKS = 11 }; /* there are no policies 6 to 9 */
    CHECK(device, out);
    if (policy > RELIABILITY && policy != APPLICATION_CLOCKS && policy != BASE_CLOCKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    out->referenceTime = (unsigned long long)time(NULL) * 1000000;
    out->violationTime = device_violation(device, policy);
    return NVML_SUCCESS;
}
