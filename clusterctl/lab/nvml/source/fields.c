/* nvmlDeviceGetFieldValues: the numbered values that tools ask for in batches. */
#include <time.h>

#include "device.h"

/* The fields whose value is a number of the profile. */
static const struct {
    unsigned id;
    enum { NUMBER, WATTS, MARGIN } kind; /* MARGIN: degrees below the highest operating temperature, from Ada on */
    const char *key;
} configured[] = {
    {NVML_FIELD_ECC_CURRENT, NUMBER, "ecc_mode"},
    {NVML_FIELD_ECC_PENDING, NUMBER, "ecc_mode"},
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
    if (!config_number(device->minor, key, &value))
        return NVML_ERROR_NOT_SUPPORTED;
    if (kind == WATTS)
        return give_power(field, (unsigned)value * 1000);
    if (kind == MARGIN)
        return device_margin(device, value, &margin) ? give_signed(field, margin) : NVML_ERROR_NOT_SUPPORTED;
    return give_unsigned(field, (unsigned)value);
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
        return give_count(field, 0);
    default:
        return active ? give_configured(device, NUMBER, "nvlink_mbps", field) : give_unsigned(field, 0);
    }
}

static nvmlReturn_t give(nvmlDevice_t device, nvmlFieldValue_t *field)
{
    long celsius;
    unsigned id = field->fieldId;
    unsigned uncorrected = (unsigned)device_ecc_errors(device, NVML_MEMORY_ERROR_UNCORRECTED);

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
    if (id >= NVML_FIELD_REMAPPED_CORRECTED && id <= NVML_FIELD_REMAPPED_FAILURE && !device_remaps_rows(device))
        return NVML_ERROR_NOT_SUPPORTED;

    switch (id) {
    case NVML_FIELD_ECC_SBE_VOLATILE:
    case NVML_FIELD_ECC_SBE_AGGREGATE:
        return give_count(field, 0);
    case NVML_FIELD_ECC_DBE_VOLATILE:
    case NVML_FIELD_ECC_DBE_AGGREGATE:
        return give_count(field, uncorrected);
    case NVML_FIELD_REMAPPED_CORRECTED:
    case NVML_FIELD_REMAPPED_FAILURE:
        return give_unsigned(field, 0);
    case NVML_FIELD_REMAPPED_UNCORRECTED:
    case NVML_FIELD_REMAPPED_PENDING:
        return give_unsigned(field, uncorrected);
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
    CHECK(device, fields);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = give(device, &fields[i]);
    }
    return NVML_SUCCESS;
}
