/*
 * Every symbol of symbols.txt, answering "not supported" where no other file defines it: a strong definition takes
 * the place of a weak one. Programs in Go bind NVML's symbols lazily and abort on one that is missing.
 */
#include "nvml.h"

#define STUB(name)                                                                                                     \
    EXPORT __attribute__((weak)) name(void);                                                                           \
    EXPORT __attribute__((weak)) name(void)                                                                            \
    {                                                                                                                  \
        return NVML_ERROR_NOT_SUPPORTED;                                                                               \
    }
#include "stubs.inc"
