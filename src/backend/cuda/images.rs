//! The embedded fatbins and the names of the kernels in them.

/// One kernel family's code for every supported GPU.
#[derive(Debug)]
pub struct Image {
    /// `kernels/<family>.cu`
    pub family: &'static str,
    /// The fatbin.
    pub bytes: &'static [u8],
    /// Entry points.
    pub kernels: &'static [&'static str],
}

/// `include_bytes!` promises no alignment; the driver's loader wants some.
#[repr(C, align(64))]
struct Aligned<const N: usize>([u8; N]);

include!(concat!(env!("OUT_DIR"), "/images.rs"));
