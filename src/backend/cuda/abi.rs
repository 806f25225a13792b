//! Kernel arguments: mirrors of `kernels/common/abi.cuh` and `abi_pack.cuh`, field by field. Sizes and offsets are compared with what a C
//! compiler makes of that file in `tests/it/kernels.rs`.
#![allow(unsafe_code)]

use super::driver::{Addr, Args};

/// Declares argument structs, promises their layout, and lists their fields' offsets for the comparison.
macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, PartialEq)]
            #[repr(C)]
            #[allow(missing_docs)]
            pub struct $name { $(pub $field: $type,)* }

            // SAFETY: `repr(C)`, plain data, the layout of the kernel's parameter (compared by a test).
            unsafe impl Args for $name {}
        )*

        /// Struct, its size, and each field with its offset.
        pub fn layouts() -> Vec<(&'static str, usize, Vec<(&'static str, usize)>)> {
            vec![$((
                stringify!($name),
                std::mem::size_of::<$name>(),
                vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*],
            ),)*]
        }
    };
}

arguments! {
    /// A weight matrix on the device.
    Matrix { data: Addr, index: Addr, bias: Addr, rows: u32, out: u32, }

    /// qkv, proj, gate_up, head.
    MatvecArgs {
        m: [Matrix; 3],
        residual: Addr,
        norm: Addr,
        x: Addr,
        y: Addr,
        hidden: Addr,
        count: u32,
        jobs: u32,
        n: u32,
        cols: u32,
        tiles: u32,
        records: u32,
        stride: u32,
        x_stride: u32,
        slot_bytes: u32,
        stages: u32,
        x_in_shared: u32,
        pair: u32,
        activation: u32,
        eps: f32,
    }

    /// embed.
    EmbedArgs {
        m: Matrix,
        tokens: Addr,
        pos: Addr,
        history: Addr,
        residual: Addr,
        n: u32,
        cols: u32,
        tiles: u32,
        records: u32,
    }

    /// unpack, retile.
    UnpackArgs { m: Matrix, out: Addr, rows_in: Addr, cols: u32, tiles: u32, records: u32, depth: u32, }

    /// attend, append, prefill.
    AttendArgs {
        qkv: Addr,
        cache: Addr,
        context: Addr,
        partial: Addr,
        counters: Addr,
        rope: Addr,
        q_norm: Addr,
        k_norm: Addr,
        pos: Addr,
        n: u32,
        heads: u32,
        kv_heads: u32,
        rotary: u32,
        window: u32,
        max_splits: u32,
        layer: u32,
        layers: u32,
        context_stride: u32,
        scale: f32,
        softcap: f32,
        eps: f32,
    }

    /// How tokens are chosen; lives in device memory.
    SampleParams {
        temperature: f32,
        top_k: u32,
        top_p: f32,
        min_p: f32,
        repeat_penalty: f32,
        presence_penalty: f32,
        frequency_penalty: f32,
        last_n: u32,
        has_bias: u32,
        unused: u32,
        seed: u64,
    }

    /// What the sampling kernels pass each other.
    SampleState { best: u64, candidates: u32, window_lo: u32, window_hi: u32, unused: u32, }

    /// sample_count, sample_scan, sample_weigh, sample_pick.
    SampleArgs {
        logits: Addr,
        params: Addr,
        state: Addr,
        bias: Addr,
        counts: Addr,
        history: Addr,
        adjusted: Addr,
        keys: Addr,
        weights: Addr,
        pos: Addr,
        token: Addr,
        ring: Addr,
        vocab: u32,
        n: u32,
        ring_len: u32,
        unused: u32,
    }

    /// prefill_norm.
    NormArgs { residual: Addr, weight: Addr, out: Addr, cols: u32, padded: u32, eps: f32, unused: u32, }

    /// prefill_act_mul.
    ActMulArgs { gate: Addr, up: Addr, out: Addr, n: u32, cols: u32, padded: u32, activation: u32, }

    /// prefill_gemm.
    GemmArgs {
        x: Addr,
        w: Addr,
        bias: Addr,
        y: Addr,
        n: u32,
        rows: u32,
        depth: u32,
        stride: u32,
        accumulate: u32,
        unused: u32,
    }

    /// How one record is stored (`kernels/common/abi_pack.cuh`).
    PackPlan {
        units: u32,
        patches: u32,
        mode: u8,
        wide: u8,
        shifted: u8,
        used: u8,
        table: [u8; 16],
        unused: u32,
    }

    /// pack_plan, pack_scan, pack_write.
    PackArgs {
        rows_in: Addr,
        plans: Addr,
        index: Addr,
        data: Addr,
        totals: Addr,
        rows: u32,
        cols: u32,
        tiles: u32,
        records: u32,
        count: u32,
        unused: u32,
    }

    /// probe_read.
    ReadArgs { data: Addr, out: Addr, count: u64, }

    /// probe_add.
    AddArgs { a: Addr, b: Addr, out: Addr, count: u64, }

    /// probe_func.
    FuncArgs { x: Addr, out: Addr, count: u32, func: u32, }
}
