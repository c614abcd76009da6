//! Launches `top_k.cu`, or `top_k_hopper.cu` where the chip has what that needs.

use super::target::Target;
use crate::backend::gpu::plan::{Launch, Plan};
use crate::backend::gpu::top_k::{Row, Selections, selections};
use crate::ops::{Checked, TopK};

pub(super) fn plan(mut op: Checked<TopK<'_>>, target: Target) -> Plan {
    let mut plan = Plan::default();
    let (selections, rows) = selections(&mut op);
    push(&selections, &mut plan, (rows, target));
    plan
}

pub(super) fn push(
    selections: &Selections,
    plan: &mut Plan,
    (rows, target): (impl ExactSizeIterator<Item = Row> + Clone, Target),
) {
    let n = target.room.rows(rows.len());
    let longest = target.room.keys(rows.clone().map(|row| row.n as usize));
    let table = selections.table(plan, (rows, target.room));
    if target.chip.hopper {
        plan.launch(placed(n, longest, selections.k).launch(n, table));
    } else {
        selections.launch(plan, (n, table));
    }
}

/// A kernel of `top_k_hopper.cu`: a cluster of blocks a row.
#[derive(Debug, Clone, Copy)]
struct Placed {
    name: &'static str,
    cluster: u32,
    threads: u32,
    /// Shared memory of a block, KiB.
    shared: u32,
}

/// Rows of up to 2,048 scores.
const SHORT_512: Placed = Placed { name: "short_512", cluster: 1, threads: 512, shared: 58 };
/// Rows whose scores fit the registers of their blocks: up to 16,384, 65,536 and 262,144 scores.
const KEPT_1X1024: Placed = Placed { name: "kept_1x1024", cluster: 1, threads: 1024, shared: 124 };
const KEPT_8X512: Placed = Placed { name: "kept_8x512", cluster: 8, threads: 512, shared: 111 };
const KEPT_16X512: Placed = Placed { name: "kept_16x512", cluster: 16, threads: 512, shared: 116 };
/// Any rows.
const READ_2X1024: Placed = Placed { name: "read_2x1024", cluster: 2, threads: 1024, shared: 93 };
const READ_4X512: Placed = Placed { name: "read_4x512", cluster: 4, threads: 512, shared: 94 };
const READ_8X1024: Placed = Placed { name: "read_8x1024", cluster: 8, threads: 1024, shared: 96 };
const READ_16X512: Placed = Placed { name: "read_16x512", cluster: 16, threads: 512, shared: 100 };

/// Where so many rows of up to so many scores go, of which `k` are sought. The selection is one and only, so this may look at
/// all three. Few rows are spread over many blocks; of many, as few blocks as keep every cluster on the chip at once.
/// Measured on an H200.
fn placed(rows: usize, longest: usize, k: usize) -> Placed {
    match (longest, rows) {
        (..=2048, _) => SHORT_512,
        (..=16_384, _) => KEPT_1X1024,
        (..=65_536, ..=24) => KEPT_8X512,
        (..=65_536, _) => READ_2X1024,
        (..=262_144, ..=6) => KEPT_16X512,
        (_, ..=6) => READ_16X512,
        (_, ..=15) => READ_8X1024,
        // More candidates than two blocks look at one by one.
        (_, 25..) if k <= 1024 => READ_2X1024,
        _ => READ_4X512,
    }
}

impl Placed {
    fn launch(self, rows: usize, table: usize) -> Launch {
        Launch {
            kernel: ("top_k_hopper", self.name),
            grid: [(rows as u32).saturating_mul(self.cluster), 1],
            threads: self.threads,
            shared: self.shared << 10,
            table,
            cluster: self.cluster,
            overlaps: true,
            ..Launch::PLAIN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the kernel file.
    #[test]
    fn kernels_are_those_of_the_file() {
        let file = include_str!("top_k_hopper.cu");
        let all = [
            SHORT_512,
            KEPT_1X1024,
            KEPT_8X512,
            KEPT_16X512,
            READ_2X1024,
            READ_4X512,
            READ_8X1024,
            READ_16X512,
        ];
        for Placed { name, cluster, threads, shared } in all {
            let line = file.lines().find(|line| line.contains(&format!("({name}, "))).expect(name);
            let start = if cluster == 1 && name.starts_with("short") {
                format!("({name}, {threads}, ")
            } else {
                format!("({name}, {cluster}, {threads}, ")
            };
            assert!(line.contains(&start) && line.ends_with(&format!(", {shared})")), "{line}");
        }
        assert_eq!(
            file.lines().filter(|l| l.starts_with("SHORT(") || l.starts_with("LONG(")).count(),
            all.len()
        );
    }

    /// A row goes where it fits.
    #[test]
    fn every_row_fits_where_it_goes() {
        for (rows, k) in
            [(1, 1), (6, 512), (7, 2048), (15, 512), (16, 512), (24, 1024), (25, 1024), (25, 2048)]
        {
            for n in [0, 1, 2048, 2049, 16_384, 16_385, 65_536, 65_537, 262_144, 262_145, 1 << 31] {
                let place = placed(rows, n, k);
                let most = match place.name {
                    "short_512" => 2048,
                    "kept_1x1024" => 16_384,
                    "kept_8x512" => 65_536,
                    "kept_16x512" => 262_144,
                    _ => usize::MAX,
                };
                assert!(n <= most, "{rows} rows of {n}: {place:?}");
            }
        }
    }
}
