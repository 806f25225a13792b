// The one list of weight formats that matrix kernels exist for; the name is the codec's (src/codec/mod.rs).
#pragma once
#include "bf16.cuh"
#include "pairlut.cuh"

#define SNUG_LOADERS(X) \
    X(bf16, LoadBf16)   \
    X(pairlut, LoadPairlut)
