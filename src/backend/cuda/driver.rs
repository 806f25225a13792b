//! The only module that names cudarc: raw calls made safe, every one returning `Result`.
//!
//! What the rest may rely on: memory, streams, events, modules and graphs are freed when dropped; nothing panics when
//! the driver is missing or old; all handles belong to one device context that lives as long as any of them. A launch is
//! the one act whose safety reaches beyond this module: see [`Args`].
#![allow(unsafe_code)]

pub mod cublas;
mod devices;

use std::ffi::{CString, c_void};
use std::mem::MaybeUninit;
use std::rc::Rc;

use cudarc::driver::{DriverError, result, sys};

use crate::error::{Error, Kind, Result};

use self::devices::info;
pub use self::devices::{
    DeviceInfo, SYMBOLS, Versions, check, devices, find, is_installed, versions,
};

/// Plain kernel arguments, passed by value as the kernel's single parameter.
///
/// # Safety
/// Implementors are `repr(C)` plain data laid out exactly as the kernel's parameter struct. Whoever fills one
/// promises that its addresses lie in live device memory large enough for what the kernel reads and writes.
pub unsafe trait Args: Copy {}

/// An address in device memory. Plain data: keeping the memory alive is the owner's business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Addr(pub u64);

impl Addr {
    /// The address `bytes` further on.
    pub fn plus(self, bytes: u64) -> Addr {
        Addr(self.0 + bytes)
    }
}

fn failed(what: &str, e: DriverError) -> Error {
    let text = e.error_string().map(|s| s.to_string_lossy().into_owned());
    let why = text.unwrap_or_else(|_| format!("{e:?}"));
    match e.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::new(
            Kind::DoesNotFit,
            format!("cannot {what}"),
            why,
            "free GPU memory, use a smaller context (-c) or a smaller format",
        ),
        _ => Error::new(
            Kind::NoGpu,
            format!("cannot {what}"),
            format!("the CUDA driver says: {why} ({:?})", e.0),
            "set SNUG_TRACE=1 to name the kernel, or run with --device cpu",
        ),
    }
}

/// `.map_err` for driver calls.
trait What<T> {
    fn what(self, what: &str) -> Result<T>;
}

impl<T> What<T> for std::result::Result<T, DriverError> {
    fn what(self, what: &str) -> Result<T> {
        self.map_err(|e| failed(what, e))
    }
}

/// The primary context of one device, current on the thread that opened it. Not `Send`: it never leaves that thread.
#[derive(Debug)]
struct Context {
    device: sys::CUdevice,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once in `Device::open`; every handle made in it holds an `Rc` of this and is gone.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Device {
    context: Rc<Context>,
    info: DeviceInfo,
}

impl Device {
    /// Makes the device's context current on this thread.
    ///
    /// # Errors
    /// `Kind::NoGpu`.
    pub fn open(index: usize) -> Result<Device> {
        devices::pick(&devices()?, &index.to_string())?;
        let what = format!("open GPU {index}");
        let device = result::device::get(index as i32).what(&what)?;
        // SAFETY: `device` came from the driver; the context is released by `Context::drop`.
        let context = unsafe {
            let ctx = result::primary_ctx::retain(device).what(&what)?;
            let context = Rc::new(Context { device });
            result::ctx::set_current(ctx).what(&what)?;
            context
        };
        Ok(Device { context, info: info(index)? })
    }

    /// What it is.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Free and total bytes of memory, all processes counted.
    pub fn memory(&self) -> Result<(u64, u64)> {
        let (free, total) = result::mem_get_info().what("ask for free GPU memory")?;
        Ok((free as u64, total as u64))
    }

    /// Waits for everything queued on the device.
    pub fn synchronize(&self) -> Result<()> {
        result::ctx::synchronize().what("wait for the GPU")
    }

    /// Device memory, not initialised.
    pub fn alloc(&self, bytes: u64) -> Result<Memory> {
        let what = format!("allocate {bytes} bytes on the GPU");
        // SAFETY: a context is current; freed by `Memory::drop`.
        let addr = unsafe { result::malloc_sync((bytes.max(1)) as usize) }.what(&what)?;
        Ok(Memory { addr: Addr(addr), bytes, _context: self.context.clone() })
    }

    /// Page-locked host memory, zeroed.
    pub fn alloc_pinned(&self, bytes: usize) -> Result<Pinned> {
        // SAFETY: a context is current; freed by `Pinned::drop`; initialised before it is handed out.
        let data = unsafe {
            let data =
                result::malloc_host(bytes.max(1), 0).what("allocate pinned memory")?.cast::<u8>();
            std::ptr::write_bytes(data, 0, bytes);
            data
        };
        Ok(Pinned { data, bytes, _context: self.context.clone() })
    }

    /// A new stream that does not wait for the default stream.
    pub fn stream(&self) -> Result<Stream> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking);
        Ok(Stream { raw: stream.what("make a stream")?, _context: self.context.clone() })
    }

    /// A new event with timing.
    pub fn event(&self) -> Result<Event> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT);
        Ok(Event { raw: event.what("make an event")?, _context: self.context.clone() })
    }

    /// Loads a fatbin.
    pub fn module(&self, image: &'static [u8]) -> Result<Module> {
        // SAFETY: a whole, aligned fatbin made by nvcc; the driver reads no further than its own header says.
        let raw =
            unsafe { result::module::load_data(image.as_ptr().cast()) }.what("load kernels")?;
        Ok(Module { raw: Rc::new(RawModule { raw, _context: self.context.clone() }) })
    }

    /// A range of addresses of `bytes` (rounded up to the granularity) that is mapped as it grows.
    pub fn reserve(&self, bytes: u64) -> Result<Growing> {
        Growing::new(self, bytes)
    }
}

/// Device memory, freed on drop.
#[derive(Debug)]
pub struct Memory {
    addr: Addr,
    bytes: u64,
    _context: Rc<Context>,
}

impl Memory {
    /// Its address.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies from the host at `offset`, and waits.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        assert!(offset + data.len() as u64 <= self.bytes, "write of {} at {offset}", data.len());
        // SAFETY: the range was checked above; the copy is complete on return.
        unsafe { result::memcpy_htod_sync(self.addr.plus(offset).0, data) }.what("copy to the GPU")
    }

    /// Copies to the host from `offset`, and waits.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        assert!(offset + data.len() as u64 <= self.bytes, "read of {} at {offset}", data.len());
        // SAFETY: the range was checked above; the copy is complete on return.
        unsafe { result::memcpy_dtoh_sync(data, self.addr.plus(offset).0) }
            .what("copy from the GPU")
    }

    /// Sets every byte, in stream order.
    pub fn fill(&self, stream: &Stream, byte: u8) -> Result<()> {
        // SAFETY: the whole allocation.
        unsafe { result::memset_d8_async(self.addr.0, byte, self.bytes as usize, stream.raw) }
            .what("fill GPU memory")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by `Device::alloc`, freed once. The driver waits for work that uses it.
        let _ = unsafe { result::free_sync(self.addr.0) };
    }
}

/// Page-locked host memory.
#[derive(Debug)]
pub struct Pinned {
    data: *mut u8,
    bytes: usize,
    _context: Rc<Context>,
}

impl Pinned {
    /// The bytes. The caller has waited for copies into or out of them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated and initialised with this length; `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.bytes) }
    }

    /// Its address as kernels see it (host and device share one address space).
    pub fn addr(&self) -> Addr {
        Addr(self.data as u64)
    }

    /// The `u32` at `index`, read so that a copy by the device in the meantime is seen.
    pub fn read_u32(&self, index: usize) -> u32 {
        assert!((index + 1) * 4 <= self.bytes, "u32 {index} of {} bytes", self.bytes);
        // SAFETY: in bounds and aligned (the driver aligns to pages); volatile because the device writes it.
        unsafe { self.data.cast::<u32>().add(index).read_volatile() }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by `alloc_pinned`, freed once.
        let _ = unsafe { result::free_host(self.data.cast()) };
    }
}

/// An in-order queue of work.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    _context: Rc<Context>,
}

/// How a kernel is started.
#[derive(Clone, Copy, Debug)]
pub struct Launch {
    /// Blocks in x, y, z.
    pub grid: (u32, u32, u32),
    /// Threads in x of a block.
    pub block: u32,
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Whether it may start before the kernel ahead of it has finished (it then waits itself).
    pub overlap: bool,
}

impl Stream {
    /// Queues a kernel. `args` is copied before this returns.
    pub fn launch<A: Args>(&self, kernel: &Kernel, launch: &Launch, args: &A) -> Result<()> {
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            // SAFETY: plain data for which zero is a value; the field that `id` selects is set below.
            ..unsafe { MaybeUninit::zeroed().assume_init() }
        };
        attribute.value.programmaticStreamSerializationAllowed = 1;
        let config = sys::CUlaunchConfig {
            gridDimX: launch.grid.0,
            gridDimY: launch.grid.1,
            gridDimZ: launch.grid.2,
            blockDimX: launch.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes,
            hStream: self.raw,
            attrs: &mut attribute,
            numAttrs: u32::from(launch.overlap),
        };
        let mut params = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        // SAFETY: function and stream are alive; one parameter of the kernel's own type (`Args`' contract, under which
        // its addresses are good too); the driver copies it during the call.
        let code = unsafe {
            sys::cuLaunchKernelEx(&config, kernel.raw, params.as_mut_ptr(), std::ptr::null_mut())
        };
        code.result().map_err(|e| failed(&format!("launch {}", kernel.name), e))
    }

    /// Waits for everything queued here.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.what("wait for the GPU")
    }

    /// Makes later work here wait for `event`.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are alive.
        unsafe { result::stream::wait_event(self.raw, event.raw, flags) }.what("order two streams")
    }

    /// Queues a copy from pinned memory. The caller leaves the source alone until it has waited.
    pub fn upload(&self, to: &Memory, offset: u64, from: &Pinned, bytes: usize) -> Result<()> {
        assert!(bytes <= from.bytes && offset + bytes as u64 <= to.bytes, "upload of {bytes}");
        // SAFETY: both ranges were checked; pinned memory stays where it is until dropped.
        unsafe {
            let source = std::slice::from_raw_parts(from.data, bytes);
            result::memcpy_htod_async(to.addr.plus(offset).0, source, self.raw)
        }
        .what("copy to the GPU")
    }

    /// Queues a copy of `bytes` device bytes into pinned memory at `offset`.
    pub fn download(&self, to: &Pinned, offset: usize, from: &Memory, bytes: usize) -> Result<()> {
        assert!(offset + bytes <= to.bytes && bytes as u64 <= from.bytes, "download of {bytes}");
        // SAFETY: both ranges were checked; raw calls so that it can be captured in a graph.
        let code = unsafe {
            sys::cuMemcpyDtoHAsync_v2(to.data.add(offset).cast(), from.addr.0, bytes, self.raw)
        };
        code.result().what("copy from the GPU")
    }

    /// Records what `work` queues here as a graph instead of running it.
    pub fn capture(&self, work: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive and not capturing.
        unsafe { result::stream::begin_capture(self.raw, mode) }.what("start a graph")?;
        let done = work();
        // SAFETY: a capture was begun; it must be ended even after an error, or the stream stays unusable.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        done?;
        let graph = graph.what("finish a graph")?;
        // SAFETY: `graph` is whole; the executable form is independent of it.
        let exec = unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            exec.what("build a graph")?
        };
        Ok(Graph { raw: exec, _context: self._context.clone() })
    }

    /// Queues a graph.
    pub fn replay(&self, graph: &Graph) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { result::graph::launch(graph.raw, self.raw) }.what("launch a step")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `Device::stream`, destroyed once; the driver finishes queued work.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    _context: Rc<Context>,
}

impl Event {
    /// Marks the work queued on `stream` so far.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both handles are alive.
        unsafe { result::event::record(self.raw, stream.raw) }.what("record an event")
    }

    /// Waits until the marked work is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.raw) }.what("wait for the GPU")
    }

    /// Milliseconds from `start` to this event; both are done.
    pub fn ms_since(&self, start: &Event) -> Result<f32> {
        // SAFETY: both handles are alive.
        unsafe { result::event::elapsed(start.raw, self.raw) }.what("read a timer")
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `Device::event`, destroyed once.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// A loaded fatbin.
#[derive(Clone, Debug)]
pub struct Module {
    raw: Rc<RawModule>,
}

#[derive(Debug)]
struct RawModule {
    raw: sys::CUmodule,
    _context: Rc<Context>,
}

/// A kernel; keeps its module loaded.
#[derive(Clone, Debug)]
pub struct Kernel {
    raw: sys::CUfunction,
    name: String,
    _module: Rc<RawModule>,
}

impl Module {
    /// The kernel of this name, allowed `shared_bytes` of dynamic shared memory.
    pub fn kernel(&self, name: &str, shared_bytes: u32) -> Result<Kernel> {
        let what = format!("find kernel {name}");
        let c_name = CString::new(name).map_err(|_| {
            Error::new(Kind::Failure, what.clone(), "the name holds a zero byte", "report this")
        })?;
        let limit = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the module is alive for as long as the returned kernel holds it.
        let raw = unsafe {
            let raw = result::module::get_function(self.raw.raw, c_name).what(&what)?;
            if shared_bytes > 0 {
                result::function::set_function_attribute(raw, limit, shared_bytes as i32)
                    .what(&what)?;
            }
            raw
        };
        Ok(Kernel { raw, name: name.to_owned(), _module: self.raw.clone() })
    }
}

impl Kernel {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for RawModule {
    fn drop(&mut self) {
        // SAFETY: loaded by `Device::module`, unloaded once, after its last kernel.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// A captured step.
#[derive(Debug)]
pub struct Graph {
    raw: sys::CUgraphExec,
    _context: Rc<Context>,
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `Stream::capture`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.raw) };
    }
}

/// Addresses reserved at full size and backed by memory as they are needed: growing never moves or copies.
#[derive(Debug)]
pub struct Growing {
    addr: Addr,
    reserved: u64,
    mapped: u64,
    step: u64,
    pieces: Vec<(u64, sys::CUmemGenericAllocationHandle)>,
    device: i32,
    _context: Rc<Context>,
}

impl Growing {
    fn new(device: &Device, bytes: u64) -> Result<Growing> {
        let index = device.info.index as i32;
        let mut step = 0usize;
        let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        // SAFETY: writes one integer.
        unsafe { sys::cuMemGetAllocationGranularity(&mut step, &properties(index), minimum) }
            .result()
            .what("ask the GPU's page size")?;
        let step = step as u64;
        let reserved = bytes.max(1).next_multiple_of(step);
        let mut addr = 0;
        // SAFETY: reserves addresses only.
        unsafe { sys::cuMemAddressReserve(&mut addr, reserved as usize, 0, 0, 0) }
            .result()
            .what(&format!("reserve {reserved} bytes of addresses"))?;
        Ok(Growing {
            addr: Addr(addr),
            reserved,
            mapped: 0,
            step,
            pieces: Vec::new(),
            device: index,
            _context: device.context.clone(),
        })
    }

    /// Its address; the first [`Growing::mapped`] bytes are memory.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Bytes backed by memory.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Bytes reserved.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Backs at least the first `bytes` with memory.
    ///
    /// # Errors
    /// `Kind::DoesNotFit` when the GPU has no more; what was mapped stays.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let want = bytes.next_multiple_of(self.step).min(self.reserved);
        if want <= self.mapped {
            return Ok(());
        }
        let size = want - self.mapped;
        let what = format!("grow the cache by {size} bytes");
        let at = self.addr.plus(self.mapped).0;
        let access = sys::CUmemAccessDesc {
            location: properties(self.device).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let mut handle = 0;
        // SAFETY: the addresses from `at` lie in this reservation and are not mapped; undone below on failure.
        unsafe {
            sys::cuMemCreate(&mut handle, size as usize, &properties(self.device), 0)
                .result()
                .what(&what)?;
            if let Err(e) = sys::cuMemMap(at, size as usize, 0, handle, 0).result() {
                let _ = sys::cuMemRelease(handle);
                return Err(failed(&what, e));
            }
            if let Err(e) = sys::cuMemSetAccess(at, size as usize, &access, 1).result() {
                let _ = sys::cuMemUnmap(at, size as usize);
                let _ = sys::cuMemRelease(handle);
                return Err(failed(&what, e));
            }
        }
        self.pieces.push((size, handle));
        self.mapped = want;
        Ok(())
    }
}

/// Ordinary pinned-in-place device memory of this device.
fn properties(device: i32) -> sys::CUmemAllocationProp {
    // SAFETY: plain data for which zero is a value.
    let mut prop: sys::CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = device;
    prop
}

impl Drop for Growing {
    fn drop(&mut self) {
        // SAFETY: unmaps and releases exactly what `grow` mapped, then frees the reservation, each once.
        unsafe {
            let _ = result::ctx::synchronize();
            if self.mapped > 0 {
                let mut at = self.addr.0;
                for (size, handle) in &self.pieces {
                    let _ = sys::cuMemUnmap(at, *size as usize);
                    let _ = sys::cuMemRelease(*handle);
                    at += size;
                }
            }
            let _ = sys::cuMemAddressFree(self.addr.0, self.reserved as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without a driver every way in ends in a clear refusal, not a panic; with one, the list is not empty.
    #[test]
    fn a_missing_driver_is_an_error_with_three_lines() {
        match devices() {
            Ok(list) => assert!(!list.is_empty()),
            Err(e) => {
                assert_eq!(e.kind, Kind::NoGpu);
                assert!(e.todo.contains("--device cpu"), "{e}");
                assert_eq!(Device::open(0).map(|_| ()).unwrap_err().kind, Kind::NoGpu);
            }
        }
    }
}
