/* Versions, error strings and the other calls that concern no single device. */
#include <stdlib.h>
#include <string.h>

#include "device.h"

#ifndef DRIVER_VERSION
#error "build.sh gives DRIVER_VERSION, for instance 550.163.01"
#endif

/* The CUDA version that a driver branch brings, as 1000 * major + 10 * minor. */
static int cuda_version(const char *driver)
{
    static const struct {
        int branch, cuda;
    } brought[] = {{590, 13010}, {580, 13000}, {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060}, {555, 12050}, {550, 12040}, {545, 12030}, {535, 12020}};
    int branch = atoi(driver);
    for (size_t i = 0; i < sizeof brought / sizeof *brought; i++)
        if (branch >= brought[i].branch)
            return brought[i].cuda;
    return 12000;
}

static void driver_version(char version[CONFIG_VALUE])
{
    strcpy(version, DRIVER_VERSION);
    config_text(NO_DEVICE, "driver_version", version);
}

int driver_branch(void)
{
    char version[CONFIG_VALUE];
    driver_version(version);
    return atoi(version);
}

EXPORT nvmlSystemGetDriverVersion(char *out, unsigned length)
{
    char version[CONFIG_VALUE];
    driver_version(version);
    return device_copy_text(version, out, length);
}

EXPORT nvmlSystemGetNVMLVersion(char *out, unsigned length)
{
    char version[CONFIG_VALUE + 3];
    strcpy(version, driver_branch() < 580 ? "12." : "13.");
    driver_version(version + 3);
    return device_copy_text(version, out, length);
}

EXPORT nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    char version[CONFIG_VALUE];
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    driver_version(version);
    *out = (int)config_number_or(NO_DEVICE, "cuda_version", cuda_version(version));
    return NVML_SUCCESS;
}

ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

static nvmlReturn_t none(unsigned *count)
{
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlUnitGetCount(unsigned *count)
{
    return none(count);
}

EXPORT nvmlSystemGetHicVersion(unsigned *count, void *versions UNUSED)
{
    return none(count);
}

EXPORT nvmlGetExcludedDeviceCount(unsigned *count)
{
    return none(count);
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t error);
const char *nvmlErrorString(nvmlReturn_t error)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "GPU access blocked by the operating system",
        "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "vGPU ECC not supported", "Insufficient Resources",
        "Invalid Frequency", "Argument version mismatch", "Requested functionality has been deprecated",
        "System is not in ready state",
        "No supported GPUs were found", "Resource not in correct state to perform requested operation",
        "Reset type is not supported for given device",
    };
    return (unsigned)error < sizeof texts / sizeof *texts ? texts[error] : "Unknown Error";
}
