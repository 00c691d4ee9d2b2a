/*
 * The part of NVML's C interface that has behaviour here, declared from its public documentation and from the
 * ctypes declarations of nvidia-ml-py. Names and layouts are NVML's own, because its callers depend on them.
 */
#ifndef SIMULATED_NVML_H
#define SIMULATED_NVML_H

#include <stdint.h>

#define EXPORT __attribute__((visibility("default"))) nvmlReturn_t
#define UNUSED __attribute__((unused))
/* Another version of a function that behaves like one defined in the same file. */
#define ALIAS(name, target) extern __typeof__(target) name __attribute__((alias(#target), visibility("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_RESET_REQUIRED = 16,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
} nvmlReturn_t;

enum { NVML_INIT_FLAG_NO_GPUS = 1 };
enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO, NVML_CLOCK_COUNT };
enum { NVML_CLOCK_ID_CURRENT, NVML_CLOCK_ID_APP_TARGET, NVML_CLOCK_ID_APP_DEFAULT, NVML_CLOCK_ID_BOOST_MAX };
enum { NVML_MEMORY_ERROR_CORRECTED, NVML_MEMORY_ERROR_UNCORRECTED };
enum { NVML_VOLATILE_ECC, NVML_AGGREGATE_ECC };
enum { NVML_MEMORY_LOCATION_DRAM = 2, NVML_MEMORY_LOCATION_SRAM = 7, NVML_MEMORY_LOCATION_COUNT };
enum { NVML_ARCH_VOLTA = 5, NVML_ARCH_TURING, NVML_ARCH_AMPERE, NVML_ARCH_ADA, NVML_ARCH_HOPPER };
enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_MULTIPLE = 20,
    NVML_TOPOLOGY_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50
};
enum { NVML_P2P_READ, NVML_P2P_WRITE, NVML_P2P_NVLINK, NVML_P2P_ATOMICS, NVML_P2P_PCI };
enum { NVML_P2P_STATUS_OK = 0, NVML_P2P_STATUS_NOT_SUPPORTED = 5 };
enum { NVML_NVLINK_MAX_LINKS = 18 };
enum { NVML_NVLINK_REMOTE_GPU = 0, NVML_NVLINK_REMOTE_SWITCH = 2 };
enum { NVML_VALUE_UNSIGNED_INT = 1, NVML_VALUE_UNSIGNED_LONG_LONG = 3, NVML_VALUE_SIGNED_INT = 5 };
enum { NVML_FABRIC_STATE_NOT_SUPPORTED = 0, NVML_FABRIC_STATE_COMPLETED = 3 };

/* The field ids of nvmlDeviceGetFieldValues that are answered. */
enum {
    NVML_FIELD_ECC_CURRENT = 1,
    NVML_FIELD_ECC_PENDING = 2,
    NVML_FIELD_ECC_SBE_VOLATILE = 3,
    NVML_FIELD_ECC_DBE_VOLATILE = 4,
    NVML_FIELD_ECC_SBE_AGGREGATE = 5,
    NVML_FIELD_ECC_DBE_AGGREGATE = 6,
    NVML_FIELD_ECC_SBE_VOLATILE_DRAM = 11,
    NVML_FIELD_ECC_DBE_VOLATILE_DRAM = 12,
    NVML_FIELD_ECC_SBE_AGGREGATE_DRAM = 22,
    NVML_FIELD_ECC_DBE_AGGREGATE_DRAM = 23,
    NVML_FIELD_RETIRED_SBE = 29,
    NVML_FIELD_RETIRED_DBE = 30,
    NVML_FIELD_RETIRED_PENDING = 31,
    NVML_FIELD_NVLINK_ERRORS_FIRST = 32,
    NVML_FIELD_NVLINK_ERRORS_LAST = 59,
    NVML_FIELD_VIOLATION_POWER = 74,
    NVML_FIELD_VIOLATION_LAST = 81,
    NVML_FIELD_MEMORY_TEMPERATURE = 82,
    NVML_FIELD_ENERGY = 83,
    NVML_FIELD_NVLINK_SPEED_L0 = 84,
    NVML_FIELD_NVLINK_SPEED_L5 = 89,
    NVML_FIELD_NVLINK_SPEED_COMMON = 90,
    NVML_FIELD_NVLINK_COUNT = 91,
    NVML_FIELD_PCIE_REPLAYS = 94,
    NVML_FIELD_NVLINK_MORE_ERRORS_FIRST = 96,
    NVML_FIELD_NVLINK_MORE_ERRORS_LAST = 119,
    NVML_FIELD_NVLINK_SPEED_L6 = 132,
    NVML_FIELD_NVLINK_SPEED_L11 = 137,
    NVML_FIELD_REMAPPED_CORRECTED = 142,
    NVML_FIELD_REMAPPED_UNCORRECTED = 143,
    NVML_FIELD_REMAPPED_PENDING = 144,
    NVML_FIELD_REMAPPED_FAILURE = 145,
    NVML_FIELD_NVSWITCH_LINKS = 147,
    NVML_FIELD_NVLINK_REPLAYS = 161,
    NVML_FIELD_NVLINK_RECOVERIES = 162,
    NVML_FIELD_NVLINK_CRC_ERRORS = 163,
    NVML_FIELD_NVLINK_SPEED = 164,
    NVML_FIELD_NVLINK_STATE = 165,
    NVML_FIELD_NVLINK_VERSION = 166,
    NVML_FIELD_MIG_WITHOUT_RESET = 184,
    NVML_FIELD_POWER_AVERAGE = 185,
    NVML_FIELD_POWER_INSTANT = 186,
    NVML_FIELD_POWER_MINIMUM = 187,
    NVML_FIELD_POWER_MAXIMUM = 188,
    NVML_FIELD_POWER_DEFAULT = 189,
    NVML_FIELD_POWER_CURRENT = 190,
    NVML_FIELD_POWER_REQUESTED = 192,
    NVML_FIELD_TLIMIT_SHUTDOWN = 193,
    NVML_FIELD_TLIMIT_SLOWDOWN = 194,
    NVML_FIELD_TLIMIT_MEMORY_MAXIMUM = 195,
    NVML_FIELD_TLIMIT_GPU_MAXIMUM = 196,
    NVML_FIELD_RESET_REQUIRED = 226,
    NVML_FIELD_RECOVERY_ACTION = 230, /* nvidia-ml-py has it from 12.570 on */
};
enum { NVML_RECOVERY_NONE, NVML_RECOVERY_GPU_RESET };

typedef struct device *nvmlDevice_t;
typedef struct gpu_instance *nvmlGpuInstance_t;
typedef struct device *nvmlComputeInstance_t; /* here the same as the MIG device that it is seen as */
typedef struct event_set *nvmlEventSet_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned version, sensor;
    int celsius;
} nvmlTemperature_t;

enum { NVML_TEMPERATURE_V1 = 0x100000c };

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned version;
    unsigned long long counts[11]; /* aggregate and volatile SRAM errors, always none here */
    unsigned thresholdExceeded;
} nvmlEccSramErrorStatus_t;

typedef struct {
    unsigned max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData; /* eventData: of an XID event its number */
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned version, powerScope, powerValueMw;
} nvmlPowerValue_v2_t;

typedef struct {
    unsigned start, size;
} nvmlPlacement_t; /* of a GPU instance in memory slices, of a compute instance in slices of its GPU instance */

typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount,
        decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    unsigned version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount, encoderCount,
        jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
    unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t info;
    char name[96];
    unsigned capabilities; /* from the third version on */
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double d;
        int si;
        unsigned ui;
        unsigned long long ull;
    } value;
} nvmlFieldValue_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned gpuInstanceId, computeInstanceId; /* UINT_MAX: of no MIG device */
} nvmlProcessInfo_t;

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    unsigned cliqueId;
    unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned version;
    nvmlGpuFabricInfo_t info;
    unsigned healthMask; /* from the second version on */
} nvmlGpuFabricInfoV_t;

#endif
