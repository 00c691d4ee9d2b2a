/* The attributes of one device: identity, memory, clocks, power, temperature, errors. Units are NVML's. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

/* Identity. */

EXPORT nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned length)
{
    CHECK_EITHER(device, out);
    return device->parent ? mig_name(device, out, length) : device_text(device, "name", out, length);
}

TEXT(nvmlDeviceGetVbiosVersion, "vbios_version")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image")
NUMBER(nvmlDeviceGetBrand, "brand")
NUMBER(nvmlDeviceGetArchitecture, "architecture")
NUMBER(nvmlDeviceGetNumGpuCores, "cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory_bus_bits")
CONSTANT(nvmlDeviceGetMinorNumber, (unsigned)device->minor)
CONSTANT(nvmlDeviceGetModuleId, (unsigned)device->minor)
CONSTANT(nvmlDeviceGetBoardId, device->domain << 16 | device->bus << 8)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetBusType, 2)

EXPORT nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    CHECK_EITHER(device, out);
    *out = (unsigned)device->index;
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned length)
{
    CHECK_EITHER(device, out);
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
CONSTANT(nvmlDeviceGetPersistenceMode, (unsigned)number_of(device, "persistence_mode", 0))
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetAccountingMode, 0)
CONSTANT(nvmlDeviceGetAccountingBufferSize, 4000)
CONSTANT(nvmlDeviceGetVirtualizationMode, 0)
EXPORT nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    TRY(device_unsigned(device, "ecc_mode", current));
    if (pending)
        *pending = (unsigned)number_of(device, "ecc_mode_pending", *current);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *out)
{
    TRY(device_unsigned(device, "ecc_mode", out));
    *out = 1;
    return NVML_SUCCESS;
}

/* Memory. */

static unsigned long long mebibytes(const struct device *device, const char *key)
{
    return (unsigned long long)number_of(device, key, 0) * MIB;
}

EXPORT nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    CHECK_EITHER(device, out);
    bool whole = !device->parent;
    out->total = whole ? mebibytes(device, "memory_total") : mig_memory(device);
    out->reserved = whole ? mebibytes(device, "memory_reserved") : 0;
    out->used = whole ? mebibytes(device, "memory_used") : 0;
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

/* The first version of the call counts what the driver reserves as used. */
EXPORT nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    nvmlMemory_v2_t memory;
    CHECK_EITHER(device, out);
    TRY(nvmlDeviceGetMemoryInfo_v2(device, &memory));
    *out = (nvmlMemory_t){memory.total, memory.free, memory.used + memory.reserved};
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    CHECK_EITHER(device, out);
    out->bar1Total = device->parent ? mig_memory(device) : mebibytes(device, "memory_bar1");
    out->bar1Used = device->parent ? 0 : MIB;
    out->bar1Free = out->bar1Total - out->bar1Used;
    return NVML_SUCCESS;
}

/* A simulated device has no processes of its own; one process may be configured, and counts while it exists. */
EXPORT nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    CHECK_EITHER(device, count);
    long pid = number_of(device, "process", 0);
    unsigned room = *count;
    *count = pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM) ? 1 : 0;
    if (*count > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (*count > 0)
        *out = (nvmlProcessInfo_t){(unsigned)pid, 512ULL * MIB, UINT_MAX, UINT_MAX};
    return NVML_SUCCESS;
}

ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

/* The first word of the command line; the process can set it to any bytes. */
EXPORT nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[32];
    if (!name || length == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    name[fread(name, 1, length - 1, file)] = 0;
    fclose(file);
    return NVML_SUCCESS;
}

CONSTANT(nvmlDeviceGetComputeRunningProcesses, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses_v2, 0)
CONSTANT(nvmlDeviceGetGraphicsRunningProcesses_v3, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses_v2, 0)
CONSTANT(nvmlDeviceGetMPSComputeRunningProcesses_v3, 0)
CONSTANT(nvmlDeviceGetAccountingPids, 0)

bool device_busy(const struct device *device)
{
    return number_of(device, "utilization_gpu", 0) > 0;
}

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

/* PCI Express: an idle link may run below what slot and device can do, a busy one does not. */

static long pcie_generation(const struct device *device)
{
    long generation = number_of(device, "pcie_generation", 0), slot = number_of(device, "pcie_generation_slot", 16);
    return generation < slot ? generation : slot;
}

static unsigned pcie_generation_now(const struct device *device)
{
    long now = number_of(device, "pcie_generation_current", 0), highest = pcie_generation(device);
    return (unsigned)(device_busy(device) || now > highest ? highest : now);
}

NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie_generation")
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, (unsigned)pcie_generation(device))
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, pcie_generation_now(device))
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width")
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth,
         (unsigned)number_of(device, "pcie_width_current", number_of(device, "pcie_width_slot", 0)))
CONSTANT(nvmlDeviceGetPcieReplayCounter, 0)

EXPORT nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter UNUSED, unsigned *out)
{
    CHECK(device, out);
    *out = 0;
    return NVML_SUCCESS;
}

/* Clocks in MHz. */

static const char *const idle_clock[] = {"clock_idle", "clock_idle", "clock_memory_idle", "clock_video_idle"};
static const char *const default_clock[] = {"clock_default", "clock_default", "clock_memory", NULL};
static const char *const chosen_clock[] = {"clock_application", "clock_application", "clock_application_memory", NULL};
static const char *const maximum_clock[] = {"clock_maximum", "clock_maximum", "clock_memory", "clock_video"};
static const char *const lowest_lock[] = {"clock_locked_lowest", "clock_locked_lowest", "clock_memory_locked_lowest"};
static const char *const highest_lock[] = {"clock_locked_highest", "clock_locked_highest",
                                           "clock_memory_locked_highest"};

static bool slowed(const struct device *device)
{
    return number_of(device, "power_brake", 0) ||
           device_temperature(device) >= number_of(device, "temperature_slowdown", 1000);
}

/* Idle or as fast as chosen, within what the clocks are locked to; at half the speed where the hardware slows down. */
static unsigned clock_now(const struct device *device, unsigned type)
{
    long idle = number_of(device, idle_clock[type], 0), now = idle;
    if (device_busy(device))
        now = number_of(device, maximum_clock[type], 0);
    if (type != NVML_CLOCK_VIDEO) {
        long chosen = number_of(device, chosen_clock[type], now), low = number_of(device, lowest_lock[type], now);
        long high = number_of(device, highest_lock[type], now);
        now = now > chosen ? chosen : now;
        now = now < low ? low : now > high ? high : now;
    }
    if (type < NVML_CLOCK_MEM && slowed(device) && now / 2 > idle)
        now /= 2;
    return (unsigned)now;
}

EXPORT nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *out)
{
    CHECK(device, out);
    if (type >= NVML_CLOCK_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    *out = clock_now(device, type);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *out)
{
    return type < NVML_CLOCK_COUNT ? device_unsigned(device, maximum_clock[type], out) : NVML_ERROR_INVALID_ARGUMENT;
}

ALIAS(nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetMaxClockInfo);

EXPORT nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *out)
{
    if (type == NVML_CLOCK_VIDEO)
        return NVML_ERROR_NOT_SUPPORTED;
    return type < NVML_CLOCK_COUNT ? device_unsigned(device, default_clock[type], out) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned type, unsigned *out)
{
    TRY(nvmlDeviceGetDefaultApplicationsClock(device, type, out));
    *out = (unsigned)number_of(device, chosen_clock[type], *out);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned which, unsigned *out)
{
    switch (which) {
    case NVML_CLOCK_ID_CURRENT:
        return nvmlDeviceGetClockInfo(device, type, out);
    case NVML_CLOCK_ID_BOOST_MAX:
        return nvmlDeviceGetMaxClockInfo(device, type, out);
    case NVML_CLOCK_ID_APP_DEFAULT:
        return nvmlDeviceGetDefaultApplicationsClock(device, type, out);
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

CONSTANT(nvmlDeviceGetPerformanceState, device_busy(device) ? 0 : (unsigned)number_of(device, "performance_state", 0))

ALIAS(nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState);

/* Why the clocks are low: idle, set so, too hot, or braked by the power supply. */
EXPORT nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out)
{
    enum { GPU_IDLE = 0x1, CLOCKS_SETTING = 0x2, HW_SLOWDOWN = 0x8, SW_THERMAL = 0x20, HW_THERMAL = 0x40,
           POWER_BRAKE = 0x80 };
    CHECK(device, out);
    long celsius = device_temperature(device);
    bool set = config_has_own(device->minor, "clock_application") || config_has_own(device->minor, highest_lock[0]);
    *out = !device_busy(device) ? GPU_IDLE : set ? CLOCKS_SETTING : 0;
    if (celsius >= number_of(device, "temperature_maximum", 1000))
        *out |= SW_THERMAL;
    if (celsius >= number_of(device, "temperature_slowdown", 1000))
        *out |= HW_SLOWDOWN | HW_THERMAL;
    if (number_of(device, "power_brake", 0))
        *out |= HW_SLOWDOWN | POWER_BRAKE;
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

/* Power: watts in the profile, milliwatts here. */

unsigned device_power_milliwatts(const struct device *device)
{
    long idle = number_of(device, "power_usage", 0) * 1000, limit = number_of(device, "power_limit", 0) * 1000;
    if (config_has_own(device->minor, "power_usage"))
        return (unsigned)idle;
    idle += device_spread(device, 3000);
    return (unsigned)(idle + (limit - idle) * number_of(device, "utilization_gpu", 0) / 100);
}

CONSTANT(nvmlDeviceGetPowerUsage, device_power_milliwatts(device))
CONSTANT(nvmlDeviceGetPowerManagementMode, 1)
CONSTANT(nvmlDeviceGetPowerManagementLimit, (unsigned)number_of(device, "power_limit", 0) * 1000)
CONSTANT(nvmlDeviceGetEnforcedPowerLimit, (unsigned)number_of(device, "power_limit", 0) * 1000)
CONSTANT(nvmlDeviceGetPowerManagementDefaultLimit, (unsigned)number_of(device, "power_default", 0) * 1000)

/* Millijoules since boot, computed with the idle power: with the current power, the counter could decrease after a load. */

EXPORT nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
    struct timespec up;
    CHECK(device, out);
    clock_gettime(CLOCK_BOOTTIME, &up);
    *out = (unsigned long long)number_of(device, "power_usage", 0) * 1000 * (unsigned long long)up.tv_sec;
    return NVML_SUCCESS;
}

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

EXPORT nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *out)
{
    if (driver_branch() < 570)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    CHECK(device, out);
    if (out->version != NVML_TEMPERATURE_V1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    out->celsius = (int)device_temperature(device);
    return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *out)
{
    static const char *const keys[] = {"temperature_shutdown", "temperature_slowdown", "temperature_memory_maximum",
                                       "temperature_maximum"};
    return threshold < 4 ? device_unsigned(device, keys[threshold], out) : NVML_ERROR_NOT_SUPPORTED;
}
