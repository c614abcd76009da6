//! Apple's driver. One command buffer a submission, each behind the one before it by an event; kernels reach memory by its address, so
//! all of it is in one residency set of the queue.

use super::driver::{Driver, Memory, Ticket, Work};
use super::queue::{ID, Queue};
use crate::device::Gpu;
use crate::error::{Error, Result};
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSError, NSProcessInfo, NSString};
use objc2_metal::{
    MTLAllocation, MTLBarrierScope, MTLBuffer, MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandEncoder,
    MTLCommandQueue, MTLCompileOptions, MTLComputeCommandEncoder, MTLComputePipelineState, MTLCopyAllDevices,
    MTLCreateSystemDefaultDevice, MTLDevice, MTLDispatchType, MTLEvent, MTLGPUFamily, MTLLanguageVersion,
    MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode, MTLResidencySet, MTLResidencySetDescriptor,
    MTLResource, MTLResourceOptions, MTLSize, MTLStorageMode,
};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// An object of a protocol.
type Object<P> = Retained<ProtocolObject<P>>;

/// The oldest macOS: residency sets and the safe math mode came with it. Every Mac with Apple silicon runs it.
const OLDEST: isize = 15;
/// The families of Apple's chips that are looked for, newest first, and their numbers: 7 is the M1's.
const FAMILIES: [(MTLGPUFamily, u32); 4] = [
    (MTLGPUFamily::Apple10, 10),
    (MTLGPUFamily::Apple9, 9),
    (MTLGPUFamily::Apple8, 8),
    (MTLGPUFamily::Apple7, 7),
];
/// Lanes of a simdgroup, which the kernels are written for.
const LANES: usize = 32;

// The system has no default device for a program that does not link this.
#[link(name = "CoreGraphics", kind = "framework")]
unsafe extern "C" {}

pub(super) struct Apple {
    device: Object<dyn MTLDevice>,
    queue: Object<dyn MTLCommandQueue>,
    resident: Arc<Resident>,
    /// Signalled with the number of each submission when it is done.
    done: Object<dyn MTLEvent>,
    submitted: AtomicU64,
    family: u32,
}

/// The one queue of this process: views name a device and no handle, so all handles' work is in one order.
pub(super) fn queue() -> Result<Arc<Queue<Apple>>> {
    static QUEUE: Mutex<Weak<Queue<Apple>>> = Mutex::new(Weak::new());
    let mut kept = QUEUE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = kept.upgrade().filter(|queue| queue.is_own_process()) {
        return Ok(queue);
    }
    let apple = Apple::open().map_err(|why| Error::Unavailable { device: ID, why })?;
    let queue = Arc::new(Queue::new(apple));
    *kept = Arc::downgrade(&queue);
    Ok(queue)
}

fn text(e: Retained<NSError>) -> String {
    e.localizedDescription().to_string()
}

impl Apple {
    fn open() -> std::result::Result<Apple, String> {
        let system = NSProcessInfo::processInfo().operatingSystemVersion();
        if system.majorVersion < OLDEST {
            return Err(format!("macOS {OLDEST} or later is needed, this is {}", system.majorVersion));
        }
        // A process without a session of its own, by ssh say, has no default device although the chip is there.
        let device = MTLCreateSystemDefaultDevice().or_else(|| MTLCopyAllDevices().firstObject());
        let device = device.ok_or("the system has no Metal device")?;
        let family = FAMILIES.into_iter().find(|&(family, _)| device.supportsFamily(family));
        let (_, family) = family.ok_or_else(|| format!("{} is not an Apple GPU", device.name()))?;
        let queue = device.newCommandQueue().ok_or("the device gives no command queue")?;
        let resident = device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let set = Set { set: resident.map_err(text)?, users: HashMap::new() };
        queue.addResidencySet(&set.set);
        let resident = Arc::new(Resident(Mutex::new(set)));
        let done = device.newEvent().ok_or("the device gives no event")?;
        Ok(Apple { device, queue, resident, done, submitted: AtomicU64::new(0), family })
    }

    fn resident(&self, buffer: Object<dyn MTLBuffer>) -> Shared {
        self.resident.lock().add(&buffer);
        Shared { buffer, resident: self.resident.clone() }
    }
}

/// All memory that kernels may reach.
struct Resident(Mutex<Set>);
struct Set {
    set: Object<dyn MTLResidencySet>,
    /// How many `Shared` there are of a buffer: one that was adopted may be adopted again while work still uses the first.
    users: HashMap<*const c_void, usize>,
}
// SAFETY: reached by one thread at a time, through the mutex.
unsafe impl Send for Set {}

impl Set {
    fn add(&mut self, buffer: &Object<dyn MTLBuffer>) {
        let users = self.users.entry(Retained::as_ptr(buffer).cast()).or_insert(0);
        *users += 1;
        if *users == 1 {
            autoreleasepool(|_| {
                self.set.addAllocation(buffer.as_ref());
                self.set.commit();
            });
        }
    }

    fn remove(&mut self, buffer: &Object<dyn MTLBuffer>) {
        let key = Retained::as_ptr(buffer).cast();
        let users = self.users.get_mut(&key).expect("added before");
        *users -= 1;
        if *users == 0 {
            self.users.remove(&key);
            let allocation: &ProtocolObject<dyn MTLAllocation> = buffer.as_ref();
            autoreleasepool(|_| {
                self.set.removeAllocation(allocation);
                self.set.commit();
            });
        }
    }
}

impl Resident {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Driver for Apple {
    type Library = Object<dyn MTLLibrary>;
    type Pipeline = Object<dyn MTLComputePipelineState>;
    type Memory = Shared;
    type Ticket = Submitted;

    fn describe(&self) -> String {
        let system = NSProcessInfo::processInfo().operatingSystemVersionString();
        format!("{} (Apple family {}), macOS, {system}", self.device.name(), self.family)
    }

    fn gpu(&self) -> Gpu {
        let system = NSProcessInfo::processInfo().operatingSystemVersion();
        Gpu {
            name: self.device.name().to_string(),
            capability: (self.family, 0),
            driver: (system.majorVersion as u32, system.minorVersion as u32),
            multiprocessors: 0,
            clock_khz: 0,
            l2_bytes: 0,
            memory_bytes: self.device.recommendedMaxWorkingSetSize() as usize,
        }
    }

    fn allocate(&self, bytes: usize) -> Option<Shared> {
        // Order is kept by events and barriers: Metal need not look for hazards, and could not see those through addresses.
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        self.device.newBufferWithLength_options(bytes, options).map(|buffer| self.resident(buffer))
    }

    unsafe fn adopt(&self, buffer: *mut c_void) -> std::result::Result<Shared, String> {
        // SAFETY: the caller's promise: a Metal buffer, or null.
        let buffer: Option<Object<dyn MTLBuffer>> = unsafe { Retained::retain(buffer.cast()) };
        let buffer = buffer.ok_or("the buffer is null")?;
        if buffer.storageMode() != MTLStorageMode::Shared {
            return Err("the buffer's storage mode must be shared".into());
        }
        Ok(self.resident(buffer))
    }

    fn library(&self, stem: &str, source: &str) -> std::result::Result<Self::Library, String> {
        autoreleasepool(|_| {
            let options = MTLCompileOptions::new();
            options.setLanguageVersion(MTLLanguageVersion::Version3_1);
            options.setMathMode(MTLMathMode::Safe);
            options.setMathFloatingPointFunctions(MTLMathFloatingPointFunctions::Precise);
            let source = NSString::from_str(source);
            let library = self.device.newLibraryWithSource_options_error(&source, Some(&options));
            library.map_err(|e| format!("{stem}.metal does not compile: {}", text(e)))
        })
    }

    fn pipeline(&self, library: &Self::Library, name: &str) -> std::result::Result<Self::Pipeline, String> {
        autoreleasepool(|_| {
            let function = library.newFunctionWithName(&NSString::from_str(name));
            let function = function.ok_or_else(|| format!("no kernel is called {name}"))?;
            let pipeline = self.device.newComputePipelineStateWithFunction_error(&function);
            let pipeline = pipeline.map_err(|e| format!("{name}: {}", text(e)))?;
            match pipeline.threadExecutionWidth() {
                LANES => Ok(pipeline),
                n => Err(format!(
                    "{name}: simdgroups have {n} threads here, the kernels are written for {LANES}"
                )),
            }
        })
    }

    fn submit(&self, work: &Work<'_, Apple>) -> std::result::Result<Submitted, String> {
        // Metal leaves a dispatch out, without a word, that has more threads than its pipeline can.
        for (launch, pipeline) in work.launches.iter().zip(work.pipelines) {
            let (threads, most) = (launch.threads as usize, pipeline.maxTotalThreadsPerThreadgroup());
            if threads > most {
                return Err(format!(
                    "{} wants {threads} threads, its pipeline takes {most}",
                    launch.kernel.1
                ));
            }
        }
        autoreleasepool(|_| {
            let commands = self.queue.commandBuffer().ok_or("the queue gives no command buffer")?;
            // The caller holds its lock: numbers ascend as they are submitted.
            let number = self.submitted.fetch_add(1, Ordering::Relaxed) + 1;
            commands.encodeWaitForEvent_value(&self.done, number - 1);
            let encoder = commands.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
            let encoder = encoder.ok_or("the command buffer gives no encoder")?;
            for (launch, pipeline) in work.launches.iter().zip(work.pipelines) {
                encoder.setComputePipelineState(pipeline);
                // SAFETY: the kernels take a table, which starts here, scratch, and threadgroup memory. The plan's table matches the kernel's
                // struct, its addresses are views that the contract checked, and the scratch is as large as the plan says.
                unsafe {
                    encoder.setBuffer_offset_atIndex(Some(&work.table.buffer), launch.table, 0);
                    encoder.setBuffer_offset_atIndex(Some(&work.scratch.buffer), 0, 1);
                    // A multiple of 16 bytes, Metal demands. Also where a kernel wants none: the last launch's would stay, beside what
                    // this kernel declares.
                    let shared = (launch.shared as usize).next_multiple_of(16).max(16);
                    encoder.setThreadgroupMemoryLength_atIndex(shared, 0);
                }
                let size = |[x, y]: [u32; 2]| MTLSize { width: x as usize, height: y as usize, depth: 1 };
                encoder
                    .dispatchThreadgroups_threadsPerThreadgroup(size(launch.grid), size([launch.threads, 1]));
                encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
            }
            encoder.endEncoding();
            commands.encodeSignalEvent_value(&self.done, number);
            commands.commit();
            Ok(Submitted(commands))
        })
    }
}

/// A command buffer that was committed.
pub(super) struct Submitted(Object<dyn MTLCommandBuffer>);
// SAFETY: once committed, a command buffer is asked for its state alone, which any thread may.
unsafe impl Send for Submitted {}

impl Ticket for Submitted {
    fn is_done(&self) -> bool {
        matches!(self.0.status(), MTLCommandBufferStatus::Completed | MTLCommandBufferStatus::Error)
    }

    fn wait(&self) -> std::result::Result<Duration, String> {
        autoreleasepool(|_| {
            self.0.waitUntilCompleted();
            if self.0.status() == MTLCommandBufferStatus::Error {
                return Err(self.0.error().map_or("a command buffer failed".into(), text));
            }
            Ok(Duration::from_secs_f64((self.0.GPUEndTime() - self.0.GPUStartTime()).max(0.0)))
        })
    }
}

/// A buffer in memory that host and device share.
pub(super) struct Shared {
    buffer: Object<dyn MTLBuffer>,
    resident: Arc<Resident>,
}
// SAFETY: Metal counts references on any thread; the queue says who touches the contents when.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Memory for Shared {
    fn address(&self) -> u64 {
        self.buffer.gpuAddress()
    }

    fn contents(&self) -> *mut u8 {
        self.buffer.contents().as_ptr().cast()
    }

    fn len(&self) -> usize {
        self.buffer.length()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.resident.lock().remove(&self.buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work may still use a buffer when it is given up and adopted again: it stays resident until the last is gone.
    #[test]
    fn a_buffer_is_resident_while_anybody_has_it() {
        let apple = match Apple::open() {
            Ok(apple) => apple,
            Err(why) => return println!("SKIPPED: {why}"),
        };
        let buffer = apple.device.newBufferWithLength_options(64, MTLResourceOptions::StorageModeShared);
        let buffer = buffer.expect("a buffer");
        // SAFETY: a Metal buffer.
        let adopt = || unsafe { apple.adopt(Retained::as_ptr(&buffer).cast_mut().cast()) }.expect("shared");
        let is_resident = || apple.resident.lock().set.containsAllocation(buffer.as_ref());
        let [first, second] = [adopt(), adopt()];
        assert!(is_resident());
        drop(first);
        assert!(is_resident());
        drop(second);
        assert!(!is_resident());
    }
}
