//! What one call launches on a GPU, as plain data: a table that the kernels read, scratch, and launches in order.
//!
//! Everything that changes from call to call (addresses, positions, lengths) is in the table; a launch's own numbers depend
//! on shapes and on the largest row alone. So a recorded graph of the launches serves any later table.

use crate::step::Limits;
use crate::view::ViewMut;
use bytemuck::Pod;

/// A kernel launch. Its parameters are the addresses of the table and of the scratch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Launch {
    /// Source file's stem and the function in it.
    pub(in crate::backend) kernel: (&'static str, &'static str),
    pub(in crate::backend) grid: [u32; 2],
    pub(in crate::backend) threads: u32,
    /// Bytes of dynamic shared memory.
    pub(in crate::backend) shared: u32,
    /// Where its table starts in the plan's.
    pub(in crate::backend) table: usize,
    /// Bytes of a table's entry where the table is nothing but entries, each of which holds all of a row of the grid: then
    /// neighbours of one kernel can be one launch. Else 0.
    pub(in crate::backend) entry: usize,
    /// Blocks of a cluster, which share their shared memory; 1 where the chip has none.
    pub(in crate::backend) cluster: u32,
    /// May start while the launch before it ends: the kernel itself waits before it touches anything but its table. It may ask the cache
    /// for what it is to read.
    pub(in crate::backend) overlaps: bool,
}

impl Launch {
    /// A launch of plain blocks, one after the other.
    pub(in crate::backend) const PLAIN: Launch = Launch {
        kernel: ("", ""),
        grid: [0, 0],
        threads: 0,
        shared: 0,
        table: 0,
        entry: 0,
        cluster: 1,
        overlaps: false,
    };
}

/// All of one call.
#[derive(Debug, Default)]
pub(in crate::backend) struct Plan {
    pub(in crate::backend) table: Vec<u8>,
    /// Bytes of scratch.
    pub(in crate::backend) scratch: usize,
    pub(in crate::backend) launches: Vec<Launch>,
}

/// What a plan makes room for: a call's own rows, or a step's limits.
#[derive(Debug, Clone, Copy)]
pub(in crate::backend) enum Room {
    Own,
    Limits(Limits),
}

impl Room {
    pub(in crate::backend) fn rows(self, own: usize) -> usize {
        match self {
            Room::Own => own,
            Room::Limits(limits) => limits.rows,
        }
    }

    pub(in crate::backend) fn width(self, own: impl Iterator<Item = usize>) -> usize {
        match self {
            Room::Own => own.max().unwrap_or(0),
            Room::Limits(limits) => limits.width,
        }
    }

    pub(in crate::backend) fn keys(self, own: impl Iterator<Item = usize>) -> usize {
        match self {
            Room::Own => own.max().unwrap_or(0),
            Room::Limits(limits) => limits.keys,
        }
    }
}

/// Tables start at multiples of this.
const ALIGN: usize = 16;

impl Plan {
    /// Appends a table: its head, then its rows, then padding rows up to the room's; returns where it starts.
    pub(in crate::backend) fn push<H: Pod, R: Pod>(
        &mut self,
        head: &H,
        (rows, padding, room): (impl Iterator<Item = R>, R, usize),
    ) -> usize {
        self.table.resize(self.table.len().next_multiple_of(ALIGN), 0);
        let start = self.table.len();
        self.table.extend_from_slice(bytemuck::bytes_of(head));
        let end = self.table.len() + room * size_of::<R>();
        for row in rows {
            self.table.extend_from_slice(bytemuck::bytes_of(&row));
        }
        while self.table.len() < end {
            self.table.extend_from_slice(bytemuck::bytes_of(&padding));
        }
        start
    }

    /// Appends another plan: its launches come after this one's, and use the same scratch after them.
    pub(in crate::backend) fn append(&mut self, other: Plan) {
        self.table.resize(self.table.len().next_multiple_of(ALIGN), 0);
        let start = self.table.len();
        self.table.extend_from_slice(&other.table);
        self.scratch = self.scratch.max(other.scratch);
        self.launches.extend(other.launches.into_iter().map(|l| Launch { table: l.table + start, ..l }));
    }

    /// Makes the one launch of another plan a part of this one's last, if both are of one kind and neither call needs scratch: more
    /// rows of its grid. Whether it could; the calls must have nothing to do with each other.
    #[cfg(feature = "cuda")]
    pub(in crate::backend) fn join(&mut self, other: &Plan) -> bool {
        let (Some(last), [more]) = (self.launches.last_mut(), &other.launches[..]) else { return false };
        let alike = |launch: &Launch| Launch {
            grid: [launch.grid[0], 0],
            threads: 0,
            shared: 0,
            table: 0,
            ..launch.clone()
        };
        let entries = |launch: &Launch| launch.table + launch.entry * launch.grid[1] as usize;
        // The table has nothing beside the entries of the two, and nothing between them.
        let whole = last.entry > 0
            && entries(last) == self.table.len()
            && (more.table, entries(more)) == (0, other.table.len());
        let Some(rows) =
            last.grid[1].checked_add(more.grid[1]).filter(|_| whole && alike(last) == alike(more))
        else {
            return false;
        };
        last.grid[1] = rows;
        last.threads = last.threads.max(more.threads);
        last.shared = last.shared.max(more.shared);
        self.table.extend_from_slice(&other.table);
        self.scratch = self.scratch.max(other.scratch);
        true
    }

    /// Appends a launch, unless it has no block.
    pub(in crate::backend) fn launch(&mut self, launch: Launch) {
        if launch.grid.iter().all(|&n| n > 0) {
            self.launches.push(launch);
        }
    }
}

/// The address of a call's status words, or 0.
pub(in crate::backend) fn status(status: &Option<ViewMut<'_, u32, 1>>) -> u64 {
    address(status.as_ref().map(|s| s.as_ptr()))
}

/// An address, or 0 for what is absent.
pub(in crate::backend) fn address<T>(pointer: Option<*const T>) -> u64 {
    pointer.map_or(0, |p| p as u64)
}
