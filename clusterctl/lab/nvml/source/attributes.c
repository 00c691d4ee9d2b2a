/* What one device is and does: identity, memory, clocks, power, temperature, errors. Units are NVML's. */
#include <stdio.h>
#include <string.h>

#include "device.h"

nvmlReturn_t device_copy_text(const char *text, char *out, unsigned length)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

nvmlReturn_t device_text(nvmlDevice_t device, const char *key, char *out, unsigned length)
{
    char text[CONFIG_VALUE];
    CHECK(device, out);
    return config_text(device->minor, key, text) ? device_copy_text(text, out, length) : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t device_unsigned(nvmlDevice_t device, const char *key, unsigned *out)
{
    long number;
    CHECK(device, out);
    if (!config_number(device->minor, key, &number) || number < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)number;
    return NVML_SUCCESS;
}

/* A call that copies one configured text or number out. */
#define TEXT(function, key)                                                                                            \
    EXPORT function(nvmlDevice_t device, char *out, unsigned length)                                                   \
    {                                                                                                                  \
        return device_text(device, key, out, length);                                                                  \
    }
#define NUMBER(function, key)                                                                                          \
    EXPORT function(nvmlDevice_t device, unsigned *out)                                                                \
    {                                                                                                                  \
        return device_unsigned(device, key, out);                                                                      \
    }
/* A call that gives the same number for every device that is there. */
#define CONSTANT(function, number)                                                                                     \
    EXPORT function(nvmlDevice_t device, unsigned *out)                                                                \
    {                                                                                                                  \
        CHECK(device, out);                                                                                            \
        *out = (number);                                                                                               \
        return NVML_SUCCESS;                                                                                           \
    }

static long number_of(const struct device *device, const char *key, long fallback)
{
    return config_number_or(device->minor, key, fallback);
}

static bool has_fault(const struct device *device, const char *name)
{
    char fault[CONFIG_VALUE];
    return config_text(device->minor, "fault", fault) && strcmp(fault, name) == 0;
}

/* Identity. */

TEXT(nvmlDeviceGetName, "name")
TEXT(nvmlDeviceGetVbiosVersion, "vbios_version")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits")
CONSTANT(nvmlDeviceGetIndex, (unsigned)device->index)
CONSTANT(nvmlDeviceGetMinorNumber, (unsigned)device->minor)
CONSTANT(nvmlDeviceGetModuleId, (unsigned)device->minor)
CONSTANT(nvmlDeviceGetBoardId, device->domain << 16 | device->bus << 8)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetBusType, 2)

EXPORT nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned length)
{
    CHECK(device, out);
    return device_copy_text(device->uuid, out, length);
}

EXPORT nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned length)
{
    CHECK(device, out);
    return device_copy_text(device->serial, out, length);
}

EXPORT nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned object, char *out, unsigned length)
{
    static const char *const keys[] = {"inforom_oem", "inforom_ecc", "inforom_power"};
    return object < 3 ? device_text(device, keys[object], out, length) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    char text[CONFIG_VALUE];
    CHECK(device, major);
    if (!minor || !config_text(device->minor, "cuda_capability", text) || sscanf(text, "%d.%d", major, minor) != 2)
        return NVML_ERROR_INVALID_ARGUMENT;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    CHECK(device, out);
    memset(out, 0, sizeof *out);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:00.0", device->domain & 0xffff, device->bus & 0xff);
    strcpy(out->busId, device->bus_id);
    out->domain = device->domain;
    out->bus = device->bus;
    out->pciDeviceId = (unsigned)number_of(device, "pci_device_id", 0);
    out->pciSubSystemId = (unsigned)number_of(device, "pci_subsystem_id", 0);
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);

ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3);

EXPORT nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *out)
{
    enum { DISPLAY_CONTROLLER = 3, THREE_D = 2 };
    nvmlPciInfo_t pci;
    CHECK(device, out);
    nvmlDeviceGetPciInfo_v3(device, &pci);
    out->domain = pci.domain;
    out->bus = pci.bus;
    out->device = 0;
    out->pciDeviceId = pci.pciDeviceId;
    out->pciSubSystemId = pci.pciSubSystemId;
    out->baseClass = DISPLAY_CONTROLLER;
    out->subClass = THREE_D;
    strcpy(out->busId, pci.busId);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *out)
{
    enum { CALLERS_BUFFER = 64 };
    CHECK(device, out);
    if (number_of(device, "architecture", 0) < NVML_ARCH_TURING)
        return NVML_ERROR_NOT_SUPPORTED;
    return nvmlSystemGetDriverVersion(out, CALLERS_BUFFER);
}

EXPORT nvmlDeviceGetGspFirmwareMode(nvmlDevice_t device, unsigned *enabled, unsigned *by_default)
{
    CHECK(device, enabled);
    *enabled = number_of(device, "architecture", 0) >= NVML_ARCH_TURING;
    if (by_default)
        *by_default = *enabled;
    return NVML_SUCCESS;
}

/* Modes. */

CONSTANT(nvmlDeviceGetComputeMode, (unsigned)number_of(device, "compute_mode", 0))
CONSTANT(nvmlDeviceGetPersistenceMode, (unsigned)number_of(device, "persistence_mode", 1))
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetAccountingMode, 0)
CONSTANT(nvmlDeviceGetAccountingBufferSize, 4000)
CONSTANT(nvmlDeviceGetVirtualizationMode, 0)
CONSTANT(nvmlDeviceIsMigDeviceHandle, 0)

EXPORT nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    CHECK(device, current);
    if (number_of(device, "mig_devices", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = 0;
    if (pending)
        *pending = 0;
    return NVML_SUCCESS;
}

CONSTANT(nvmlDeviceGetMaxMigDeviceCount, (unsigned)number_of(device, "mig_devices", 0))

EXPORT nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index UNUSED, nvmlDevice_t *out)
{
    CHECK(device, out);
    return number_of(device, "mig_devices", 0) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    nvmlReturn_t result = device_unsigned(device, "ecc_mode", current);
    if (result == NVML_SUCCESS && pending)
        *pending = *current;
    return result;
}

NUMBER(nvmlDeviceGetDefaultEccMode, "ecc_mode")

/* Memory. */

static unsigned long long mebibytes(const struct device *device, const char *key)
{
    return (unsigned long long)number_of(device, key, 0) * MIB;
}

EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    CHECK(device, out);
    out->total = mebibytes(device, "memory_total");
    /* The first version of the call counts what the driver reserves as used. */
    out->used = mebibytes(device, "memory_used") + mebibytes(device, "memory_reserved");
    out->free = out->total - out->used;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    CHECK(device, out);
    out->total = mebibytes(device, "memory_total");
    out->reserved = mebibytes(device, "memory_reserved");
    out->used = mebibytes(device, "memory_used");
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    CHECK(device, out);
    out->bar1Total = mebibytes(device, "memory_bar1");
    out->bar1Used = MIB;
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* Nobody computes on a simulated device. */
CONSTANT(nvmlDeviceGetComputeRunningProcesses, 0)
CONSTANT(nvmlDeviceGetComputeRunningProcesses_v2, 0)
CONSTANT(nvmlDeviceGetComputeRunningProcesses_v3, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses_v2, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses_v3, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses_v2, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)
CONSTANT(nvmlDeviceGetAccountingPids, 0)

EXPORT nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    CHECK(device, out);
    out->gpu = (unsigned)number_of(device, "utilization_gpu", 0);
    out->memory = (unsigned)number_of(device, "utilization_memory", 0);
    return NVML_SUCCESS;
}

#define ENGINE(function)                                                                                               \
    EXPORT function(nvmlDevice_t device, unsigned *utilization, unsigned *period)                                      \
    {                                                                                                                  \
        CHECK(device, utilization);                                                                                    \
        *utilization = 0;                                                                                              \
        if (period)                                                                                                    \
            *period = 167000;                                                                                          \
        return NVML_SUCCESS;                                                                                           \
    }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

EXPORT nvmlDeviceGetEncoderStats(nvmlDevice_t device, unsigned *sessions, unsigned *frames, unsigned *latency)
{
    CHECK(device, sessions);
    *sessions = *frames = *latency = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetFBCStats(nvmlDevice_t device, unsigned stats[3])
{
    CHECK(device, stats);
    memset(stats, 0, 3 * sizeof *stats);
    return NVML_SUCCESS;
}

CONSTANT(nvmlDeviceGetEncoderSessions, 0)
CONSTANT(nvmlDeviceGetFBCSessions, 0)

/* PCI Express: a simulated link is idle and has never had to replay. */

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation_current")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
CONSTANT(nvmlDeviceGetPcieReplayCounter, 0)

EXPORT nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter UNUSED, unsigned *out)
{
    CHECK(device, out);
    *out = 0;
    return NVML_SUCCESS;
}

/* Clocks in MHz. */

static const char *const idle_clock[] = {"clock_idle", "clock_idle", "clock_memory_idle", "clock_video_idle"};
static const char *const default_clock[] = {"clock_default", "clock_default", "clock_memory", "clock_video"};
static const char *const maximum_clock[] = {"clock_maximum", "clock_maximum", "clock_memory", "clock_video"};

#define CLOCK(function, keys)                                                                                          \
    EXPORT function(nvmlDevice_t device, unsigned type, unsigned *out)                                                 \
    {                                                                                                                  \
        return type < NVML_CLOCK_COUNT ? device_unsigned(device, keys[type], out) : NVML_ERROR_INVALID_ARGUMENT;       \
    }
CLOCK(nvmlDeviceGetClockInfo, idle_clock)
CLOCK(nvmlDeviceGetMaxClockInfo, maximum_clock)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, maximum_clock)

EXPORT nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *out)
{
    if (type == NVML_CLOCK_VIDEO)
        return NVML_ERROR_NOT_SUPPORTED;
    return type < NVML_CLOCK_COUNT ? device_unsigned(device, default_clock[type], out) : NVML_ERROR_INVALID_ARGUMENT;
}

ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetApplicationsClock);

EXPORT nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned which, unsigned *out)
{
    switch (which) {
    case NVML_CLOCK_ID_CURRENT:
        return nvmlDeviceGetClockInfo(device, type, out);
    case NVML_CLOCK_ID_BOOST_MAX:
        return nvmlDeviceGetMaxClockInfo(device, type, out);
    default:
        return nvmlDeviceGetApplicationsClock(device, type, out);
    }
}

EXPORT nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
    CHECK(device, count);
    unsigned room = *count;
    *count = 1;
    if (!clocks || room < 1)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    return device_unsigned(device, "clock_memory", clocks);
}

/* From the maximum down to the idle clock in steps of 15 MHz, as data-centre models have them. */
EXPORT nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count, unsigned *clocks)
{
    enum { STEP = 15 };
    CHECK(device, count);
    if (memory != (unsigned)number_of(device, "clock_memory", 0))
        return NVML_ERROR_NOT_FOUND;
    long maximum = number_of(device, "clock_maximum", 0), idle = number_of(device, "clock_idle", 0);
    unsigned room = *count;
    *count = (unsigned)((maximum - idle) / STEP) + 1;
    if (!clocks || room < *count)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++)
        clocks[i] = (unsigned)maximum - i * STEP;
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetPowerState, "performance_state")

/* Why the clocks are low: idle, or too hot. */
EXPORT nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out)
{
    enum { GPU_IDLE = 0x1, HW_SLOWDOWN = 0x8, HW_THERMAL_SLOWDOWN = 0x40 };
    CHECK(device, out);
    *out = number_of(device, "utilization_gpu", 0) == 0 ? GPU_IDLE : 0;
    if (device_temperature(device) >= number_of(device, "temperature_slowdown", 1000))
        *out |= HW_SLOWDOWN | HW_THERMAL_SLOWDOWN;
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);

EXPORT nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *out)
{
    CHECK(device, out);
    *out = 0x1ff;
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

EXPORT nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy UNUSED, nvmlViolationTime_t *out)
{
    CHECK(device, out);
    memset(out, 0, sizeof *out);
    return NVML_SUCCESS;
}

/* Power: watts in the profile, milliwatts here. */

unsigned device_power_milliwatts(const struct device *device)
{
    unsigned milliwatts = (unsigned)number_of(device, "power_usage", 0) * 1000;
    return config_has_own(device->minor, "power_usage") ? milliwatts : milliwatts + device_spread(device, 3000);
}

CONSTANT(nvmlDeviceGetPowerUsage, device_power_milliwatts(device))
CONSTANT(nvmlDeviceGetPowerManagementMode, 1)
CONSTANT(nvmlDeviceGetPowerManagementLimit, (unsigned)number_of(device, "power_limit", 0) * 1000)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, (unsigned)number_of(device, "power_limit", 0) * 1000)
CONSTANT(nvmlDeviceGetPowerManagementDefaultLimit, (unsigned)number_of(device, "power_default", 0) * 1000)

EXPORT nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *lowest, unsigned *highest)
{
    CHECK(device, lowest);
    *lowest = (unsigned)number_of(device, "power_minimum", 0) * 1000;
    *highest = (unsigned)number_of(device, "power_maximum", 0) * 1000;
    return NVML_SUCCESS;
}

/* Temperature in degrees Celsius. */

long device_temperature(const struct device *device)
{
    long celsius = number_of(device, "temperature", 0);
    return config_has_own(device->minor, "temperature") ? celsius : celsius + (long)device_spread(device, 4);
}

bool device_margin(const struct device *device, long celsius, long *margin)
{
    long maximum;
    if (number_of(device, "architecture", 0) < NVML_ARCH_ADA ||
        !config_number(device->minor, "temperature_maximum", &maximum))
        return false;
    *margin = maximum - celsius;
    return true;
}

EXPORT nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    CHECK(device, out);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = (unsigned)device_temperature(device);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *out)
{
    static const char *const keys[] = {"temperature_shutdown", "temperature_slowdown", "temperature_memory_maximum",
                                       "temperature_maximum"};
    return threshold < 4 ? device_unsigned(device, keys[threshold], out) : NVML_ERROR_NOT_SUPPORTED;
}

/* Errors. */

unsigned long long device_ecc_errors(const struct device *device, unsigned error_type)
{
    return error_type == NVML_MEMORY_ERROR_UNCORRECTED && has_fault(device, "ecc") ? 1 : 0;
}

bool device_remaps_rows(const struct device *device)
{
    return number_of(device, "architecture", 0) >= NVML_ARCH_AMPERE;
}

EXPORT nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter UNUSED, unsigned long long *out)
{
    CHECK(device, out);
    *out = device_ecc_errors(device, type);
    return NVML_SUCCESS;
}

/* The location that counts is the DRAM; the older models also count in their caches and registers. */
EXPORT nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter UNUSED, unsigned location,
                                       unsigned long long *out)
{
    CHECK(device, out);
    if (location >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = location == NVML_MEMORY_LOCATION_DRAM ? device_ecc_errors(device, type) : 0;
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

EXPORT nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                 unsigned *failure)
{
    CHECK(device, corrected);
    if (!device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *failure = 0;
    *uncorrected = *pending = (unsigned)device_ecc_errors(device, NVML_MEMORY_ERROR_UNCORRECTED);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *out)
{
    enum { BANKS = 640 };
    CHECK(device, out);
    if (!device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->max = BANKS;
    return NVML_SUCCESS;
}

/* Page retirement, of the models before Ampere. */

EXPORT nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause UNUSED, unsigned *count,
                                 unsigned long long *addresses UNUSED)
{
    CHECK(device, count);
    if (device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                    unsigned long long *addresses, unsigned long long *timestamps UNUSED)
{
    return nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}

EXPORT nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out)
{
    CHECK(device, out);
    if (device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;
    *out = has_fault(device, "ecc");
    return NVML_SUCCESS;
}
