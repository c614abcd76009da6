//! A recording with every tensor looked up, and which cases run as one call.

use super::cases::Case;
use super::format::{Group as Recorded, Manifest};
use super::tensors::Tensors;
use std::collections::HashMap;

/// Most rows of a group that nobody recorded as one.
const ALIKE: usize = 32;
/// Most bytes that one group may copy.
const MAX_GROUP: u64 = 4 << 30;

/// The cases of one JSON file in calls.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) cases: Vec<Case<'a>>,
    pub(super) groups: Vec<Group>,
}

/// Cases that run as one call.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: String,
    /// Places in `Plan::cases`; at least one.
    pub(super) cases: Vec<usize>,
}

impl<'a> Plan<'a> {
    /// Looks up and checks everything; no element is read yet. `stem` names groups that nobody recorded.
    pub(super) fn new(manifest: &'a Manifest, tensors: &Tensors<'a>, stem: &str) -> Result<Self, String> {
        let cases = manifest.cases.iter().map(|case| Case::resolve(case, tensors));
        let cases: Vec<Case<'a>> = cases.collect::<Result<_, _>>()?;
        if cases.is_empty() {
            return Err("cases must be at least one, got none".into());
        }
        let ids: Vec<&str> = manifest.cases.iter().map(|case| case.id.as_str()).collect();
        let mut groups = match &manifest.groups {
            Some(groups) => recorded(groups, &ids, &cases)?,
            None => alike(&cases, stem),
        };
        // What no call holds yet runs alone, and so does a case that is refused: it would take others with it.
        let mut held = vec![false; cases.len()];
        groups.iter().flat_map(|group| &group.cases).for_each(|&c| held[c] = true);
        groups.extend(
            (0..cases.len()).filter(|&c| !held[c]).map(|c| Group { id: String::new(), cases: vec![c] }),
        );
        for group in &mut groups {
            if let [case] = *group.cases.as_slice() {
                group.id = ids[case].to_string();
            }
        }
        Ok(Plan { cases, groups })
    }
}

fn recorded(groups: &[Recorded], ids: &[&str], cases: &[Case<'_>]) -> Result<Vec<Group>, String> {
    let places: HashMap<&str, usize> = ids.iter().enumerate().map(|(place, &id)| (id, place)).collect();
    let group = |recorded: &Recorded| {
        let error = |why: String| format!("group {}: {why}", recorded.id);
        let mut members: Vec<usize> = Vec::new();
        for id in &recorded.cases {
            let &case =
                places.get(id.as_str()).ok_or_else(|| error(format!("case {id} must be there, is not")))?;
            if members.contains(&case) {
                return Err(error(format!("case {id} must be there once, is there twice")));
            }
            members.push(case);
        }
        members.retain(|&case| cases[case].refused().is_none());
        if let Some(other) = members.iter().find(|&&case| !cases[case].joins(&cases[members[0]])) {
            let (first, other) = (ids[members[0]], ids[*other]);
            let must = "must share shapes, numbers and common tensors";
            return Err(error(format!("cases {first} and {other} {must} to run as one call, do not")));
        }
        let size = members.iter().fold(0u64, |sum, &case| sum.saturating_add(cases[case].size()));
        if size > MAX_GROUP {
            return Err(error(format!("must hold at most {MAX_GROUP} bytes, holds {size}")));
        }
        Ok(Group { id: recorded.id.clone(), cases: members })
    };
    let groups = groups.iter().map(group).collect::<Result<Vec<Group>, String>>()?;
    Ok(groups.into_iter().filter(|group| !group.cases.is_empty()).collect())
}

/// Cases that one call can hold, beside each other although they were recorded alone.
fn alike(cases: &[Case<'_>], stem: &str) -> Vec<Group> {
    let mut groups: Vec<(Group, u64)> = Vec::new();
    for (place, case) in cases.iter().enumerate().filter(|(_, case)| case.refused().is_none()) {
        let fits = |(group, size): &&mut (Group, u64)| {
            group.cases.len() < ALIKE
                && size.saturating_add(case.size()) <= MAX_GROUP
                && case.joins(&cases[group.cases[0]])
        };
        match groups.iter_mut().find(fits) {
            Some((group, size)) => {
                group.cases.push(place);
                *size += case.size();
            }
            None => {
                let id = format!("{stem}, alike {}", groups.len() + 1);
                groups.push((Group { id, cases: vec![place] }, case.size()));
            }
        }
    }
    groups.into_iter().map(|(group, _)| group).collect()
}
