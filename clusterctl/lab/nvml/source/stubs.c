/*
 * Every symbol of symbols.txt that no other file defines: a strong definition takes the place of a weak one. It answers
 * "not supported", or "function not found" as where the driver is older than the function. The symbol is there all the
 * same: programs in Go bind NVML's symbols lazily and abort on one that is missing.
 */
#include "config.h"
#include "nvml.h"

#define STUB(name, branch)                                                                                             \
    EXPORT __attribute__((weak)) name(void);                                                                           \
    EXPORT __attribute__((weak)) name(void)                                                                            \
    {                                                                                                                  \
        return driver_branch() < (branch) ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;                  \
    }
#include "stubs.inc"
