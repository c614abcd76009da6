//! Launches `top_k.cu`, or `top_k_hopper.cu` where the chip has what that needs.

use super::target::{Chip, Target};
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
        plan.launch(placed((n, longest), selections.k, target.chip).launch(n, table));
    } else {
        selections.launch(plan, (n, table));
    }
}

/// A kernel of `top_k_hopper.cu`, and how many blocks take a row.
#[derive(Debug, Clone, Copy)]
struct Placed {
    kernel: &'static Kernel,
    cluster: u32,
}

#[derive(Debug)]
struct Kernel {
    name: &'static str,
    threads: u32,
    /// Shared memory of a block, KiB.
    shared: u32,
    /// The most scores that a block takes; a row of more than all blocks' is read again, if at all.
    scores: usize,
}

/// Scores are in registers.
const SHORT_512: Kernel = Kernel { name: "short_512", threads: 512, shared: 66, scores: 2048 };
const KEPT_512_FEW: Kernel = Kernel { name: "kept_512_few", threads: 512, shared: 106, scores: 4096 };
const KEPT_1024: Kernel = Kernel { name: "kept_1024", threads: 1024, shared: 106, scores: 16_384 };
const KEPT_512: Kernel = Kernel { name: "kept_512", threads: 512, shared: 106, scores: 8192 };
const KEPT_512_MORE: Kernel = Kernel { name: "kept_512_more", threads: 512, shared: 106, scores: 16_384 };
/// In shared memory.
const HELD_1024: Kernel = Kernel { name: "held_1024", threads: 1024, shared: 218, scores: 32_768 };
/// The best of each four is kept, and what may be sought is read again.
const READ_1024: Kernel = Kernel { name: "read_1024", threads: 1024, shared: 106, scores: usize::MAX };

/// Where so many rows of up to so many scores go, of which `k` are sought. The selection is one and only, so this may look at
/// all three. A row is spread over as many blocks as keep every row on the chip at once. Measured on an H200.
fn placed((rows, longest): (usize, usize), k: usize, chip: Chip) -> Placed {
    if longest <= SHORT_512.scores {
        return Placed { kernel: &SHORT_512, cluster: 1 };
    }
    if longest <= 4 * KEPT_512_FEW.scores && rows <= chip.clusters(4) {
        return Placed { kernel: &KEPT_512_FEW, cluster: 4 };
    }
    if longest <= KEPT_1024.scores {
        return Placed { kernel: &KEPT_1024, cluster: 1 };
    }
    let long = longest > 65_536;
    let most = if long { 16 } else { 8 };
    // Of long rows' many candidates two blocks look at too many each.
    let least = if long && k > 1024 { 4 } else { 2 };
    let fits = |&blocks: &usize| blocks <= most && chip.clusters(blocks) >= rows;
    let cluster = [16, 8, 4].into_iter().find(fits).unwrap_or(least);
    let holds = |kernel: &&Kernel| longest.div_ceil(cluster) <= kernel.scores;
    let kernels = [&KEPT_512_FEW, &KEPT_512, &KEPT_512_MORE, &HELD_1024];
    let kernel = kernels.into_iter().find(holds).unwrap_or(&READ_1024);
    Placed { kernel, cluster: cluster as u32 }
}

impl Placed {
    fn launch(self, rows: usize, table: usize) -> Launch {
        Launch {
            kernel: ("top_k_hopper", self.kernel.name),
            grid: [(rows as u32).saturating_mul(self.cluster), 1],
            threads: self.kernel.threads,
            shared: self.kernel.shared << 10,
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

    const ALL: [&Kernel; 7] =
        [&SHORT_512, &KEPT_512_FEW, &KEPT_1024, &KEPT_512, &KEPT_512_MORE, &HELD_1024, &READ_1024];

    /// The numbers of the kernel file.
    #[test]
    fn kernels_are_those_of_the_file() {
        let file = include_str!("top_k_hopper.cu");
        let of_file: Vec<&str> =
            file.lines().filter(|l| l.starts_with("SHORT(") || l.starts_with("LONG(")).collect();
        assert_eq!(of_file.len(), ALL.len());
        for Kernel { name, threads, shared, scores } in ALL {
            let line = of_file.iter().find(|line| line.contains(&format!("({name}, "))).expect(name);
            assert!(line.contains(&format!("({name}, {threads}, ")), "{line}");
            assert!(line.ends_with(&format!(", {shared})")), "{line}");
            let fours = scores / (4 * *threads as usize);
            let whole = ["KEPT", "HELD"].map(|hold| format!("({name}, {threads}, {fours}, {hold}, "));
            let is_short = line.starts_with("SHORT(") && fours == 1;
            let holds = is_short || whole.iter().any(|start| line.contains(start));
            assert!(holds || *scores == usize::MAX, "{line}");
        }
    }

    /// A row goes where it fits, on one multiprocessor or many.
    #[test]
    fn every_row_fits_where_it_goes() {
        for (rows, k) in
            [(1, 1), (7, 512), (8, 2048), (15, 512), (16, 512), (30, 1024), (31, 1024), (200, 2048)]
        {
            for n in [0, 1, 2048, 2049, 16_384, 16_385, 65_536, 65_537, 262_144, 262_145, 1 << 31] {
                for multiprocessors in [1, 132] {
                    let chip = Chip { hopper: true, shared: 0, multiprocessors, attention: None };
                    let Placed { kernel, cluster } = placed((rows, n), k, chip);
                    let most = kernel.scores.saturating_mul(cluster as usize);
                    assert!(n <= most, "{rows} rows of {n}: {kernel:?} x {cluster}");
                }
            }
        }
    }
}
