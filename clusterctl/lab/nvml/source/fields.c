/* nvmlDeviceGetFieldValues: the numbered values that tools ask for in batches. */
#include <time.h>

#include "device.h"

/* The fields whose value is a number of the configuration. */
static const struct {
    unsigned id;
    /* COUNT: none unless given, PAGES: before Ampere, ROWS: from then on; MARGIN: degrees below the highest operating
     * one, from Ada on */
    enum { NUMBER, COUNT, PAGES, ROWS, WATTS, MARGIN } kind;
    const char *key;
} configured[] = {
    {NVML_FIELD_RETIRED_DBE, PAGES, "retired_pages"},
    {NVML_FIELD_RETIRED_PENDING, PAGES, "retired_pending"},
    {NVML_FIELD_RESET_REQUIRED, COUNT, "reset_required"},
    {NVML_FIELD_REMAPPED_CORRECTED, ROWS, "remapped_corrected"},
    {NVML_FIELD_REMAPPED_UNCORRECTED, ROWS, "remapped_uncorrected"},
    {NVML_FIELD_REMAPPED_PENDING, ROWS, "remapped_pending"},
    {NVML_FIELD_REMAPPED_FAILURE, ROWS, "remapped_failure"},
    {NVML_FIELD_MEMORY_TEMPERATURE, NUMBER, "temperature_memory"},
    {NVML_FIELD_NVLINK_COUNT, NUMBER, "nvlink_links"},
    {NVML_FIELD_NVLINK_VERSION, NUMBER, "nvlink_version"},
    {NVML_FIELD_POWER_MINIMUM, WATTS, "power_minimum"},
    {NVML_FIELD_POWER_MAXIMUM, WATTS, "power_maximum"},
    {NVML_FIELD_POWER_DEFAULT, WATTS, "power_default"},
    {NVML_FIELD_POWER_CURRENT, WATTS, "power_limit"},
    {NVML_FIELD_POWER_REQUESTED, WATTS, "power_limit"},
    {NVML_FIELD_TLIMIT_SHUTDOWN, MARGIN, "temperature_shutdown"},
    {NVML_FIELD_TLIMIT_SLOWDOWN, MARGIN, "temperature_slowdown"},
    {NVML_FIELD_TLIMIT_GPU_MAXIMUM, MARGIN, "temperature_maximum"},
};

static nvmlReturn_t give_unsigned(nvmlFieldValue_t *field, unsigned value)
{
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    field->value.ui = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_count(nvmlFieldValue_t *field, unsigned long long value)
{
    field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
    field->value.ull = value;
    return NVML_SUCCESS;
}

static nvmlReturn_t give_signed(nvmlFieldValue_t *field, long value)
{
    field->valueType = NVML_VALUE_SIGNED_INT;
    field->value.si = (int)value;
    return NVML_SUCCESS;
}

/* The scope of a power field is the GPU, its memory or the module; only the first is measured here. */
static nvmlReturn_t give_power(nvmlFieldValue_t *field, unsigned milliwatts)
{
    return field->scopeId == 0 ? give_unsigned(field, milliwatts) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t give_configured(nvmlDevice_t device, int kind, const char *key, nvmlFieldValue_t *field)
{
    long value, margin;
    if (kind == ROWS)
        return device_remaps_rows(device)
                   ? give_count(field, (unsigned long long)config_number_or(device->minor, key, 0))
                   : NVML_ERROR_NOT_SUPPORTED;
    if (kind == COUNT || kind == PAGES)
        return kind == COUNT || !device_remaps_rows(device)
                   ? give_unsigned(field, (unsigned)config_number_or(device->minor, key, 0))
                   : NVML_ERROR_NOT_SUPPORTED;
    if (!config_number(device->minor, key, &value))
        return NVML_ERROR_NOT_SUPPORTED;
    if (kind == WATTS)
        return give_power(field, (unsigned)value * 1000);
    if (kind == MARGIN)
        return device_margin(device, value, &margin) ? give_signed(field, margin) : NVML_ERROR_NOT_SUPPORTED;
    return give_unsigned(field, (unsigned)value);
}

static nvmlReturn_t give_link_errors(nvmlDevice_t device, unsigned link, nvmlFieldValue_t *field)
{
    unsigned long long errors;
    TRY(link_errors(device, link, &errors));
    return give_count(field, errors);
}

/* Errors of four kinds, a block of fields each: the first six links and all together, or the next six. */
static nvmlReturn_t give_numbered_errors(nvmlDevice_t device, unsigned id, nvmlFieldValue_t *field)
{
    enum { BLOCK = 7, NEXT = 6 };
    unsigned long long sum = 0, errors;
    if (id >= NVML_FIELD_NVLINK_MORE_ERRORS_FIRST)
        return give_link_errors(device, NEXT + (id - NVML_FIELD_NVLINK_MORE_ERRORS_FIRST) % NEXT, field);
    unsigned place = (id - NVML_FIELD_NVLINK_ERRORS_FIRST) % BLOCK;
    if (place < BLOCK - 1)
        return give_link_errors(device, place, field);
    TRY(link_errors(device, 0, &sum));
    for (unsigned link = 1; link_errors(device, link, &errors) == NVML_SUCCESS; link++)
        sum += errors;
    return give_count(field, sum);
}

static nvmlReturn_t give_ecc_errors(nvmlDevice_t device, unsigned id, nvmlFieldValue_t *field)
{
    bool corrected = id == NVML_FIELD_ECC_SBE_VOLATILE || id == NVML_FIELD_ECC_SBE_AGGREGATE ||
                     id == NVML_FIELD_ECC_SBE_VOLATILE_DRAM || id == NVML_FIELD_ECC_SBE_AGGREGATE_DRAM;
    bool now = id == NVML_FIELD_ECC_SBE_VOLATILE || id == NVML_FIELD_ECC_DBE_VOLATILE ||
               id == NVML_FIELD_ECC_SBE_VOLATILE_DRAM || id == NVML_FIELD_ECC_DBE_VOLATILE_DRAM;
    if (!device_ecc(device))
        return NVML_ERROR_NOT_SUPPORTED;
    return give_count(field, device_ecc_errors(device, !corrected, !now));
}

static nvmlReturn_t give_link(nvmlDevice_t device, unsigned link, nvmlFieldValue_t *field)
{
    unsigned active;
    nvmlReturn_t result = nvmlDeviceGetNvLinkState(device, link, &active);
    if (result != NVML_SUCCESS)
        return result;
    switch (field->fieldId) {
    case NVML_FIELD_NVLINK_STATE:
        return give_unsigned(field, active);
    case NVML_FIELD_NVLINK_REPLAYS:
    case NVML_FIELD_NVLINK_RECOVERIES:
    case NVML_FIELD_NVLINK_CRC_ERRORS:
        return give_link_errors(device, link, field);
    default:
        return active ? give_configured(device, NUMBER, "nvlink_mbps", field) : give_unsigned(field, 0);
    }
}

static nvmlReturn_t give(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    long celsius;
    unsigned id = field->fieldId;
    unsigned ecc, pending;
    unsigned long long millijoules;

    for (unsigned i = 0; i < sizeof configured / sizeof *configured; i++)
        if (configured[i].id == id)
            return give_configured(device, configured[i].kind, configured[i].key, field);
    if (id >= NVML_FIELD_NVLINK_SPEED_L0 && id <= NVML_FIELD_NVLINK_SPEED_L5)
        return give_link(device, id - NVML_FIELD_NVLINK_SPEED_L0, field);
    if (id >= NVML_FIELD_NVLINK_SPEED_L6 && id <= NVML_FIELD_NVLINK_SPEED_L11)
        return give_link(device, id - NVML_FIELD_NVLINK_SPEED_L6 + 6, field);
    if (id == NVML_FIELD_NVLINK_SPEED_COMMON)
        return give_link(device, 0, field);
    if (id >= NVML_FIELD_NVLINK_REPLAYS && id <= NVML_FIELD_NVLINK_STATE)
        return give_link(device, field->scopeId, field);
    if ((id >= NVML_FIELD_NVLINK_ERRORS_FIRST && id <= NVML_FIELD_NVLINK_ERRORS_LAST) ||
        (id >= NVML_FIELD_NVLINK_MORE_ERRORS_FIRST && id <= NVML_FIELD_NVLINK_MORE_ERRORS_LAST))
        return give_numbered_errors(device, id, field);
    if (id >= NVML_FIELD_VIOLATION_POWER && id <= NVML_FIELD_VIOLATION_LAST)
        return give_count(field, device_violation(device, id - NVML_FIELD_VIOLATION_POWER));

    switch (id) {
    case NVML_FIELD_ECC_CURRENT:
    case NVML_FIELD_ECC_PENDING:
        TRY(nvmlDeviceGetEccMode(device, &ecc, &pending));
        return give_count(field, id == NVML_FIELD_ECC_CURRENT ? ecc : pending);
    case NVML_FIELD_ENERGY:
        TRY(nvmlDeviceGetTotalEnergyConsumption(device, &millijoules));
        return give_count(field, millijoules);
    case NVML_FIELD_ECC_SBE_VOLATILE:
    case NVML_FIELD_ECC_DBE_VOLATILE:
    case NVML_FIELD_ECC_SBE_AGGREGATE:
    case NVML_FIELD_ECC_DBE_AGGREGATE:
    case NVML_FIELD_ECC_SBE_VOLATILE_DRAM:
    case NVML_FIELD_ECC_DBE_VOLATILE_DRAM:
    case NVML_FIELD_ECC_SBE_AGGREGATE_DRAM:
    case NVML_FIELD_ECC_DBE_AGGREGATE_DRAM:
        return give_ecc_errors(device, id, field);
    case NVML_FIELD_RETIRED_SBE:
        return device_remaps_rows(device) ? NVML_ERROR_NOT_SUPPORTED : give_unsigned(field, 0);
    case NVML_FIELD_PCIE_REPLAYS:
        return give_unsigned(field, 0);
    case NVML_FIELD_MIG_WITHOUT_RESET:
        return give_unsigned(field, config_number_or(device->minor, "architecture", 0) >= NVML_ARCH_HOPPER);
    case NVML_FIELD_RECOVERY_ACTION:
        if (driver_branch() < 570)
            return NVML_ERROR_NOT_SUPPORTED;
        pending = config_number_or(device->minor, "reset_required", 0) ? NVML_RECOVERY_GPU_RESET : NVML_RECOVERY_NONE;
        return give_unsigned(field, (unsigned)config_number_or(device->minor, "recovery_action", pending));
    case NVML_FIELD_NVSWITCH_LINKS:
        return device_switched(device) ? give_configured(device, NUMBER, "nvlink_links", field)
                                       : give_unsigned(field, 0);
    case NVML_FIELD_POWER_AVERAGE:
    case NVML_FIELD_POWER_INSTANT:
        return give_power(field, device_power_milliwatts(device));
    case NVML_FIELD_TLIMIT_MEMORY_MAXIMUM:
        return config_number(device->minor, "temperature_memory", &celsius)
                   ? give_configured(device, MARGIN, "temperature_maximum", field)
                   : NVML_ERROR_NOT_SUPPORTED;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

EXPORT nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    struct timespec now;
    CHECK_EITHER(device, fields);
    if (device->parent)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t readable = device_check(device, fields);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        fields[i].latencyUsec = 0;
        bool known = readable == NVML_SUCCESS || fields[i].fieldId == NVML_FIELD_RESET_REQUIRED;
        fields[i].nvmlReturn = known ? give(device, &fields[i]) : readable;
    }
    return NVML_SUCCESS;
}
