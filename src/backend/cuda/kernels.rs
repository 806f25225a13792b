//! The kernels of a loaded program, found once by name.

use super::driver::{Device, Kernel, Module};
use super::images::{Coverage, IMAGES, coverage};
use crate::codec::Format;
use crate::error::{Error, Kind, Result};

/// Which copies feed a matrix kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// `cp.async`, sm_80 and later.
    Portable,
    /// Bulk copies with mbarriers, sm_90 and later.
    Bulk,
}

/// The kernels of one matrix op, by format.
#[derive(Clone, Debug)]
pub struct ByFormat {
    bf16: Kernel,
    pairlut: Kernel,
}

impl ByFormat {
    /// The kernel for weights of this format.
    pub fn of(&self, format: Format) -> &Kernel {
        match format {
            Format::Bf16 => &self.bf16,
            Format::Pairlut => &self.pairlut,
        }
    }
}

/// Every kernel the backend launches.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Kernels {
    pub embed: ByFormat,
    pub qkv: ByFormat,
    pub proj: ByFormat,
    pub gate_up: ByFormat,
    pub head: ByFormat,
    pub unpack: ByFormat,
    pub attend: Kernel,
    pub append: Kernel,
    pub prefill_attend: Kernel,
    pub norm: Kernel,
    pub gemm: Kernel,
    pub act_mul: Kernel,
    pub sample: [Kernel; 4],
}

/// Finds kernels by family and name.
#[derive(Debug)]
pub struct Library {
    modules: Vec<(&'static str, Module)>,
    shared_bytes: u32,
}

impl Library {
    /// Loads every family's image for this device.
    ///
    /// # Errors
    /// `Kind::NoGpu` when no image is for it.
    pub fn load(device: &Device) -> Result<Library> {
        let (major, minor) = device.info().capability;
        if coverage((major, minor)) == Coverage::None {
            return Err(Error::new(
                Kind::NoGpu,
                format!("cannot use {}", device.info().name),
                format!("its compute capability is {major}.{minor}; the kernels need 8.0 or newer"),
                "use another device (`snug devices`), or run with --device cpu",
            ));
        }
        let modules = IMAGES
            .iter()
            .map(|image| Ok((image.family, device.module(image.bytes)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Library { modules, shared_bytes: device.info().shared_bytes })
    }

    /// The kernel `snug_<name>` of `family`; `dynamic` asks for all the shared memory a block may have.
    pub fn get(&self, family: &str, name: &str, dynamic: bool) -> Result<Kernel> {
        let module = self.modules.iter().find(|(f, _)| *f == family).ok_or_else(|| {
            Error::new(
                Kind::NoGpu,
                format!("cannot find kernel {name}"),
                format!("this build has no kernel family {family}"),
                "run with --device cpu",
            )
        })?;
        // A kernel's static shared memory counts against the same limit; none uses more than a few kilobytes.
        let shared = if dynamic { self.shared_bytes - 4096 } else { 0 };
        module.1.kernel(&format!("snug_{name}"), shared)
    }

    fn by_format(&self, family: &str, suffix: &str, dynamic: bool) -> Result<ByFormat> {
        Ok(ByFormat {
            bf16: self.get(family, &format!("{family}_bf16{suffix}"), dynamic)?,
            pairlut: self.get(family, &format!("{family}_pairlut{suffix}"), dynamic)?,
        })
    }

    /// The kernels for heads of `head_dim` on this path.
    ///
    /// # Errors
    /// `Kind::NoGpu` when no attention kernel was built for this head width.
    pub fn kernels(&self, head_dim: u32, path: Path) -> Result<Kernels> {
        if ![64, 96, 128, 256].contains(&head_dim) {
            return Err(Error::new(
                Kind::NoGpu,
                "cannot run this model on the GPU",
                format!(
                    "its heads are {head_dim} wide; attention kernels exist for 64, 96, 128 and 256"
                ),
                "run with --device cpu",
            ));
        }
        let suffix = if path == Path::Bulk { "_sm90" } else { "" };
        let attend = |name: &str| self.get("attend", &format!("{name}_{head_dim}"), true);
        Ok(Kernels {
            embed: self.by_format("embed", "", false)?,
            qkv: self.by_format("qkv", suffix, true)?,
            proj: self.by_format("proj", suffix, true)?,
            gate_up: self.by_format("gate_up", suffix, true)?,
            head: self.by_format("head", suffix, true)?,
            unpack: self.by_format("unpack", "", false)?,
            attend: attend("attend")?,
            append: attend("append")?,
            prefill_attend: attend("prefill")?,
            norm: self.get("prefill", "prefill_norm", false)?,
            gemm: self.get("prefill", "prefill_gemm", true)?,
            act_mul: self.get("prefill", "prefill_act_mul", false)?,
            sample: [
                self.get("sample", "sample_count", false)?,
                self.get("sample", "sample_scan", false)?,
                self.get("sample", "sample_weigh", false)?,
                self.get("sample", "sample_pick", false)?,
            ],
        })
    }
}
