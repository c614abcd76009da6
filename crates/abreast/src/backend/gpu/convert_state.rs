//! The table and the launch of state conversion: which old row each new one copies is found here.

use super::plan::{Launch, Plan, Room};
use crate::ops::{Checked, ConvertState};
use bytemuck::{Pod, Zeroable};

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    features: u64,
    rows: i32,
    pad: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Row {
    kv_from: u64,
    score_from: u64,
    kv_to: u64,
    score_to: u64,
    sources: u64,
    to_rows: i32,
    features: i32,
}

pub(in crate::backend) fn plan(mut op: Checked<ConvertState<'_, '_>>, room: Room) -> Plan {
    let mut plan = Plan::default();
    let n = op.rows.len();
    let lists: Vec<Vec<i32>> =
        (0..n).map(|e| op.sources(e).map(|old| old.map_or(-1, |old| old as i32)).collect()).collect();
    let most = lists.iter().map(Vec::len).max().unwrap_or(0);
    let places = room.rows(n);
    let mut sources = (size_of::<Head>() + places * size_of::<Row>()) as u64;
    let rows = op.rows.iter_mut().map(|row| {
        let [to_rows, features] = row.kv_to.shape();
        let at = sources;
        sources += (to_rows * size_of::<i32>()) as u64;
        Row {
            kv_from: row.kv_from.as_ptr() as u64,
            score_from: row.score_from.as_ptr() as u64,
            kv_to: row.kv_to.as_mut_ptr() as u64,
            score_to: row.score_to.as_mut_ptr() as u64,
            sources: at,
            to_rows: to_rows as i32,
            features: features as i32,
        }
    });
    let table = plan.push(&Head { features: 0, rows: places as i32, pad: 0 }, (rows, Row::zeroed(), places));
    for list in &lists {
        plan.table.extend_from_slice(bytemuck::cast_slice(list));
    }
    let grid = [most as u32, places as u32];
    plan.launch(Launch {
        kernel: ("convert_state", "convert_state"),
        grid,
        threads: 256,
        table,
        overlaps: true,
        ..Launch::PLAIN
    });
    plan
}
