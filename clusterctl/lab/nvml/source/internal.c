/*
 * The private table of functions that nvidia-smi asks for besides NVML's public interface: first its size in bytes,
 * then pointers. What is here was found by watching which entries nvidia-smi calls and what it hands them; the numbers
 * are the same in 535 and 550. Where an entry answers "not supported", nvidia-smi prints N/A.
 */
#include "device.h"

enum {
    IS_PRIMARY = 19,
    COMMON_ANCESTOR = 22,
    ENFORCED_POWER_LIMIT = 107,
    RESET = 167,
    FABRIC_NEEDS = 168,
    GROUP_MAKE = 181,
    GROUP_CHECK = 182,
    GROUP_FREE = 183,
    COMPUTE_PROCESSES = 212,
    MPS_PROCESSES = 213,
    GRAPHICS_PROCESSES = 214,
    HOST_GENERATION = 229,
    TEMPERATURE_MARGIN = 239,
    ENTRIES = 512
};

typedef void (*entry_t)(void);

static nvmlReturn_t not_supported(void)
{
    return NVML_ERROR_NOT_SUPPORTED;
}

/* `topo -m`: where the paths of two PCI devices, given by bus id, meet; 0 is a single switch, 4 the whole system. */
static nvmlReturn_t common_ancestor(const char *a, const char *b, unsigned *level)
{
    nvmlDevice_t first, second;
    if (nvmlDeviceGetHandleByPciBusId_v2(a, &first) != NVML_SUCCESS ||
        nvmlDeviceGetHandleByPciBusId_v2(b, &second) != NVML_SUCCESS)
        return NVML_ERROR_NOT_FOUND;
    nvmlReturn_t result = nvmlDeviceGetTopologyCommonAncestor(first, second, level);
    if (result == NVML_SUCCESS)
        *level = *level / 10 - (*level > NVML_TOPOLOGY_INTERNAL);
    return result;
}

/* `-q`: how far a device of Ada or later is from the temperature that slows it down. */
static nvmlReturn_t temperature_margin(nvmlDevice_t device, int *celsius)
{
    long margin;
    CHECK(device, celsius);
    if (!device_margin(device, device_temperature(device), &margin))
        return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (int)margin;
    return NVML_SUCCESS;
}

/* `-q`: the PCI Express generation of the slot. */
static nvmlReturn_t host_generation(nvmlDevice_t device, unsigned *generation)
{
    CHECK(device, generation);
    return device_unsigned(device, "pcie_generation_slot", generation) == NVML_SUCCESS
               ? NVML_SUCCESS
               : device_unsigned(device, "pcie_generation", generation);
}

typedef struct {
    nvmlProcessInfo_t process;
    unsigned long long protected_memory;
    char name[4096];
} named_process_t;

/* The processes that compute; `count` is at first the size of the array. */
static nvmlReturn_t compute_processes(nvmlDevice_t device, unsigned *count, named_process_t *out)
{
    TRY(nvmlDeviceGetComputeRunningProcesses_v3(device, count, &out->process));
    if (*count > 0 && nvmlSystemGetProcessName(out->process.pid, out->name, sizeof out->name) != NVML_SUCCESS)
        *count = 0;
    return NVML_SUCCESS;
}

/* The other lists of processes. */
static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    CHECK_EITHER(device, count);
    *count = 0;
    return NVML_SUCCESS;
}

/* `-r`: no device shows the console, or must be reset together with others; the group of those to reset is only made. */
static nvmlReturn_t is_primary(nvmlDevice_t device, unsigned *primary)
{
    CHECK(device, primary);
    *primary = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t fabric_needs(unsigned *needs)
{
    *needs = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t group_make(const void **group, nvmlDevice_t *devices, unsigned count UNUSED)
{
    *group = devices;
    return NVML_SUCCESS;
}

static nvmlReturn_t group_done(const void *group UNUSED)
{
    return NVML_SUCCESS;
}

static nvmlReturn_t reset(unsigned count, nvmlDevice_t *devices)
{
    for (unsigned i = 0; i < count; i++)
        TRY(device_reset(devices[i]));
    return NVML_SUCCESS;
}

EXPORT nvmlInternalGetExportTable(const void **out, const void *id UNUSED)
{
    static struct {
        size_t size;
        entry_t entries[ENTRIES];
    } table;
    static const struct {
        int entry;
        entry_t function;
    } answered[] = {
        {IS_PRIMARY, (entry_t)is_primary},
        {COMMON_ANCESTOR, (entry_t)common_ancestor},
        {ENFORCED_POWER_LIMIT, (entry_t)nvmlDeviceGetEnforcedPowerLimit},
        {RESET, (entry_t)reset},
        {FABRIC_NEEDS, (entry_t)fabric_needs},
        {GROUP_MAKE, (entry_t)group_make},
        {GROUP_CHECK, (entry_t)group_done},
        {GROUP_FREE, (entry_t)group_done},
        {COMPUTE_PROCESSES, (entry_t)compute_processes},
        {MPS_PROCESSES, (entry_t)no_processes},
        {GRAPHICS_PROCESSES, (entry_t)no_processes},
        {HOST_GENERATION, (entry_t)host_generation},
        {TEMPERATURE_MARGIN, (entry_t)temperature_margin},
    };
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    table.size = sizeof table;
    for (int i = 0; i < ENTRIES; i++)
        table.entries[i] = (entry_t)not_supported;
    for (size_t i = 0; i < sizeof answered / sizeof *answered; i++)
        table.entries[answered[i].entry] = answered[i].function;
    *out = &table;
    return NVML_SUCCESS;
}
