#![allow(unsafe_code)]
//! Is there a driver, and which devices does it show?

use cudarc::driver::{result, sys};

use super::What;
use crate::error::{Error, Kind, Result, visible};

/// The oldest driver API that loads this build's kernels (13.0 = driver 580).
const DRIVER_API: u32 = 13_000;

/// Entry points that [`check`] looks for before anything is called: cudarc panics on a missing one.
pub const SYMBOLS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRetain",
    "cuEventElapsedTime_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuLaunchKernelEx",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuModuleLoadData",
    "cuStreamBeginCapture_v2",
];

/// What is known of a device before a context is made on it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DeviceInfo {
    /// Position in the driver's list (after `CUDA_VISIBLE_DEVICES`).
    pub index: usize,
    /// Product name.
    pub name: String,
    /// `GPU-…`, as other tools print it.
    pub uuid: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Memory in bytes.
    pub memory: u64,
    /// Multiprocessors.
    pub sms: u32,
    /// Largest shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
}

/// Whether there is a driver, of whatever age.
pub fn is_installed() -> bool {
    // SAFETY: only tries to open libraries by name.
    unsafe { sys::is_culib_present() }
}

/// Checks that a driver is there and new enough. Every other function of this file needs this to have succeeded.
///
/// # Errors
/// `Kind::NoGpu`, naming what is missing.
pub fn check() -> Result<()> {
    let refuse =
        |why: String, todo: &str| Err(Error::new(Kind::NoGpu, "cannot use the GPU", why, todo));
    let update = "update the NVIDIA driver to 580 or newer, or run with --device cpu";
    if !is_installed() {
        return refuse(
            "no CUDA driver: libcuda.so.1 was not found".into(),
            "install the NVIDIA driver, or run with --device cpu",
        );
    }
    // SAFETY: the library is present, so this cannot panic; symbols are looked up, not called.
    let missing = unsafe {
        let lib = sys::culib();
        SYMBOLS.iter().find(|name| lib.get::<unsafe extern "C" fn()>(name.as_bytes()).is_err())
    };
    if let Some(name) = missing {
        return refuse(format!("the CUDA driver is too old: it has no {name}"), update);
    }
    result::init().what("start the CUDA driver")?;
    let version = api()?;
    if version < DRIVER_API {
        let spoken = format!("{}.{}", version / 1000, version % 1000 / 10);
        return refuse(
            format!("the driver supports CUDA {spoken}; these kernels need 13.0"),
            update,
        );
    }
    Ok(())
}

/// Every device the driver shows.
///
/// # Errors
/// As [`check`].
pub fn devices() -> Result<Vec<DeviceInfo>> {
    check()?;
    let count = result::device::get_count().what("count the GPUs")?;
    (0..count).map(|index| info(index as usize)).collect()
}

/// Versions of what is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The newest CUDA that the driver speaks: 13.0.
    pub cuda: (u32, u32),
    /// The driver's own number, where the system tells: `580.95.05`.
    pub driver: Option<String>,
}

/// Versions of the driver.
///
/// # Errors
/// As [`check`].
pub fn versions() -> Result<Versions> {
    check()?;
    let api = api()?;
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    Ok(Versions { cuda: (api / 1000, api % 1000 / 10), driver: module_version(&text) })
}

/// The version in the text that the driver's kernel module shows of itself.
fn module_version(text: &str) -> Option<String> {
    let line = text.lines().find(|l| l.starts_with("NVRM version:"))?;
    let number = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(number).map(str::to_owned)
}

fn api() -> Result<u32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().what("ask the driver's version")?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// The device that `text` names: an index, a UUID, or the beginning of one that only one device has.
///
/// # Errors
/// As [`check`]; `NoGpu` with the list of devices when none, or more than one, is meant.
pub fn find(text: &str) -> Result<usize> {
    pick(&devices()?, text)
}

pub(super) fn pick(list: &[DeviceInfo], text: &str) -> Result<usize> {
    let wanted = text.to_ascii_lowercase();
    let named: Vec<usize> = match text.parse::<usize>() {
        Ok(index) => list.iter().map(|d| d.index).filter(|i| *i == index).collect(),
        Err(_) => {
            let begins = |d: &&DeviceInfo| d.uuid.to_ascii_lowercase().starts_with(&wanted);
            list.iter().filter(begins).map(|d| d.index).collect()
        }
    };
    let why = match named.as_slice() {
        [one] => return Ok(*one),
        [] if list.is_empty() => "the driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)".into(),
        [] => {
            let all: Vec<String> =
                list.iter().map(|d| format!("cuda:{} = {}", d.index, d.uuid)).collect();
            format!("the driver shows {}", all.join(", "))
        }
        many => format!("{} GPUs have a UUID that begins so", many.len()),
    };
    Err(Error::new(
        Kind::NoGpu,
        format!("cannot find the GPU {}", visible(text)),
        why,
        "`snug devices` lists what is there; or run with --device cpu",
    ))
}

pub(super) fn info(index: usize) -> Result<DeviceInfo> {
    use sys::CUdevice_attribute as A;
    let what = "ask a GPU what it is";
    let device = result::device::get(index as i32).what(what)?;
    let attribute = |a: A| -> Result<u64> {
        // SAFETY: `device` came from the driver.
        let value = unsafe { result::device::get_attribute(device, a) }.what(what)?;
        Ok(u64::try_from(value).unwrap_or(0))
    };
    let uuid = result::device::get_uuid(device).what(what)?;
    let hex: String = uuid.bytes.iter().map(|b| format!("{:02x}", *b as u8)).collect();
    let uuid = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
    Ok(DeviceInfo {
        index,
        name: result::device::get_name(device).what(what)?,
        uuid: format!("GPU-{uuid}"),
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        // SAFETY: `device` came from the driver.
        memory: unsafe { result::device::total_mem(device) }.what(what)? as u64,
        sms: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        l2_bytes: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_index_and_by_uuid() {
        let device = |index: usize, uuid: &str| DeviceInfo {
            index,
            uuid: uuid.into(),
            ..DeviceInfo::default()
        };
        let list = [device(0, "GPU-11aa-0"), device(1, "GPU-11bb-0"), device(2, "GPU-2cc0-0")];
        for (text, want) in [
            ("0", Some(0)),
            ("2", Some(2)),
            ("3", None),
            ("GPU-11aa-0", Some(0)),
            ("gpu-11BB", Some(1)),
            ("GPU-2", Some(2)),
            ("GPU-11", None),
            ("GPU-9", None),
            ("-1", None),
            ("GPU-11aa-0-", None),
        ] {
            let got = pick(&list, text);
            assert_eq!(got.as_ref().ok().copied(), want, "{text}");
            if let Err(e) = got {
                assert_eq!(e.kind, Kind::NoGpu, "{text}");
            }
        }
        assert!(pick(&list, "7").unwrap_err().why.contains("cuda:2 = GPU-2cc0-0"));
        assert!(pick(&list, "GPU-11").unwrap_err().why.contains("2 GPUs"));
        assert!(pick(&[], "0").unwrap_err().why.contains("no GPU"));
    }

    #[test]
    fn the_driver_s_version_is_read_from_its_module() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23\nGCC version:  gcc 13.3.0\n";
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159  Release\n";
        assert_eq!(module_version(closed).as_deref(), Some("580.95.05"));
        assert_eq!(module_version(open).as_deref(), Some("580.159"));
        assert_eq!(module_version("GCC version: gcc 13.3.0"), None);
        assert_eq!(module_version(""), None);
    }
}
