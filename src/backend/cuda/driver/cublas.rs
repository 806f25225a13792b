#![allow(unsafe_code)]
//! cuBLAS, where it is installed: what other engines multiply with, to be timed beside ours. Nothing is computed with it.

use std::ffi::c_void;

use cudarc::cublas::{result, sys};

use super::{Addr, Device, Memory, Stream};
use crate::error::{Error, Kind, Result};

/// The handle's own memory: what its kernels want on the largest cards.
const WORKSPACE_BYTES: u64 = 64 << 20;

/// Entry points that are looked for before anything is called: cudarc panics on a missing one.
const SYMBOLS: &[&str] = &[
    "cublasCreate_v2",
    "cublasDestroy_v2",
    "cublasSetStream_v2",
    "cublasSetWorkspace_v2",
    "cublasGemmEx",
    "cublasGetVersion_v2",
];

/// An open library on one stream.
#[derive(Debug)]
pub struct Cublas {
    handle: sys::cublasHandle_t,
    version: i32,
    /// Freed after the handle.
    _workspace: Memory,
}

fn failed(what: &str, e: result::CublasError) -> Error {
    let why = format!("cuBLAS says {:?}", e.0);
    Error::new(Kind::NoGpu, format!("cannot {what}"), why, "leave it out of LD_LIBRARY_PATH")
}

impl Cublas {
    /// Opens it on a stream; `None` when the library is not installed, or lacks what is needed.
    ///
    /// # Errors
    /// It is there and does not work.
    pub fn open(device: &Device, stream: &Stream) -> Result<Option<Cublas>> {
        // SAFETY: only tries to open libraries by name, and to find names in them.
        let there = unsafe {
            sys::is_culib_present()
                && SYMBOLS
                    .iter()
                    .all(|name| sys::culib().get::<unsafe extern "C" fn()>(name.as_bytes()).is_ok())
        };
        if !there {
            return Ok(None);
        }
        let workspace = device.alloc(WORKSPACE_BYTES)?;
        let what = "open cuBLAS";
        let handle = result::create_handle().map_err(|e| failed(what, e))?;
        let mut blas = Cublas { handle, version: 0, _workspace: workspace };
        // SAFETY: the handle is good, and stream and workspace outlive it: the stream is the caller's, who keeps it, as
        // `multiply` asks for it again; the workspace is dropped after the handle.
        unsafe {
            let (to, bytes) = (blas._workspace.addr().0 as *mut c_void, WORKSPACE_BYTES as usize);
            result::set_stream(handle, stream.raw.cast()).map_err(|e| failed(what, e))?;
            sys::cublasSetWorkspace_v2(handle, to, bytes).result().map_err(|e| failed(what, e))?;
            sys::cublasGetVersion_v2(handle, &mut blas.version)
                .result()
                .map_err(|e| failed(what, e))?;
        }
        Ok(Some(blas))
    }

    /// Its version: 13.1.0.
    pub fn version(&self) -> String {
        let v = self.version;
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// Queues `y[n][rows] = x[n][cols] · w[rows][cols]ᵀ` on `stream`, which is the one it was opened on: bf16 in and out, f32
    /// sums.
    ///
    /// # Errors
    /// The memory is too small, or the library refuses.
    pub fn multiply(
        &self,
        stream: &Stream,
        w: &Memory,
        x: &Memory,
        y: &Memory,
        (rows, cols, n): (u32, u32, u32),
    ) -> Result<()> {
        let bytes = |a: u32, b: u32| 2 * u64::from(a) * u64::from(b);
        let large = |m: &Memory, a: u32, b: u32| m.bytes() >= bytes(a, b);
        assert!(large(w, rows, cols) && large(x, n, cols) && large(y, n, rows), "{rows} x {cols}");
        let at = |m: &Memory| -> *mut c_void {
            let Addr(addr) = m.addr();
            addr as *mut c_void
        };
        let (one, zero) = (1f32, 0f32);
        let bf16 = sys::cudaDataType_t::CUDA_R_16BF;
        let (m, n, k) = (rows as i32, n as i32, cols as i32);
        // SAFETY: sizes were checked above; stream and handle are alive. Column-major, so that a row-major W is its own
        // transpose.
        unsafe {
            result::set_stream(self.handle, stream.raw.cast())
                .and_then(|()| {
                    result::gemm_ex(
                        self.handle,
                        sys::cublasOperation_t::CUBLAS_OP_T,
                        sys::cublasOperation_t::CUBLAS_OP_N,
                        m,
                        n,
                        k,
                        std::ptr::from_ref(&one).cast(),
                        at(w),
                        bf16,
                        k,
                        at(x),
                        bf16,
                        k,
                        std::ptr::from_ref(&zero).cast(),
                        at(y),
                        bf16,
                        m,
                        sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                        sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
                    )
                })
                .map_err(|e| failed("multiply with cuBLAS", e))
        }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once, before its workspace.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}
