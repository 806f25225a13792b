//! What this process and a GPU report about themselves. Every value may be missing: drivers differ in what they tell.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;

/// What was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Free and total bytes of memory.
    pub memory: Option<(u64, u64)>,
    /// Bytes that this process holds.
    pub held: Option<u64>,
    /// Percent of time that kernels ran.
    pub busy_percent: Option<u32>,
    /// Degrees Celsius.
    pub celsius: Option<u32>,
    /// Watts drawn and allowed; 0 is not known.
    pub watts: Option<(u32, u32)>,
    /// Clock of the multiprocessors.
    pub mhz: Option<u32>,
}

/// A GPU as NVIDIA's management library sees it.
pub struct Gpu {
    nvml: Nvml,
    uuid: String,
}

impl Gpu {
    /// The GPU of this id, if the library is there and knows it.
    pub fn open(uuid: Option<&str>) -> Option<Gpu> {
        let nvml = Nvml::init().ok()?;
        let uuid = uuid?.to_owned();
        nvml.device_by_uuid(uuid.as_str()).ok()?;
        Some(Gpu { nvml, uuid })
    }

    /// What it reports now.
    pub fn read(&mut self) -> Reading {
        let Ok(device) = self.nvml.device_by_uuid(self.uuid.as_str()) else {
            return Reading::default();
        };
        let own = std::process::id();
        let held = device.running_compute_processes().ok().and_then(|all| {
            all.iter().find(|p| p.pid == own).and_then(|p| match p.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            })
        });
        let limit = device.enforced_power_limit().unwrap_or(0);
        Reading {
            memory: device.memory_info().ok().map(|m| (m.free, m.total)),
            held,
            busy_percent: device.utilization_rates().ok().map(|u| u.gpu),
            celsius: device.temperature(TemperatureSensor::Gpu).ok(),
            watts: device.power_usage().ok().map(|mw| (mw / 1000, limit / 1000)),
            mhz: device.clock_info(Clock::SM).ok(),
        }
    }
}

/// Resident bytes of this process, where the system tells.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
