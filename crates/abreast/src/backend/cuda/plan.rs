//! What one call launches, as plain data: a table that the kernels read, scratch, and launches in order.
//!
//! Everything that changes from call to call (addresses, positions, lengths) is in the table; a launch's own numbers depend
//! on shapes and on the largest row alone. So a recorded graph of the launches serves any later table.

use bytemuck::Pod;

/// A kernel launch. Its parameters are the addresses of the table and of the scratch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Launch {
    /// Source file's stem and the function in it.
    pub(super) kernel: (&'static str, &'static str),
    pub(super) grid: [u32; 2],
    pub(super) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(super) shared: u32,
    /// Where its table starts in the plan's.
    pub(super) table: usize,
}

/// All of one call.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) table: Vec<u8>,
    /// Bytes of scratch.
    pub(super) scratch: usize,
    pub(super) launches: Vec<Launch>,
}

/// Tables start at multiples of this.
const ALIGN: usize = 16;

impl Plan {
    /// Appends a table: its head, then its rows; returns where it starts.
    pub(super) fn push<H: Pod, R: Pod>(&mut self, head: &H, rows: impl Iterator<Item = R>) -> usize {
        self.table.resize(self.table.len().next_multiple_of(ALIGN), 0);
        let start = self.table.len();
        self.table.extend_from_slice(bytemuck::bytes_of(head));
        for row in rows {
            self.table.extend_from_slice(bytemuck::bytes_of(&row));
        }
        start
    }

    /// Appends a launch, unless it has no block.
    pub(super) fn launch(&mut self, launch: Launch) {
        if launch.grid.iter().all(|&n| n > 0) {
            self.launches.push(launch);
        }
    }
}

/// An address, or 0 for what is absent.
pub(super) fn address<T>(pointer: Option<*const T>) -> u64 {
    pointer.map_or(0, |p| p as u64)
}
