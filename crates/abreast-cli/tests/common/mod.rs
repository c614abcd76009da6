//! A recording in memory, cut from the shipped one and changed at will, and the program run on it.
#![allow(dead_code, unreachable_pub)] // Each test uses a part.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// One JSON file and its tensors.
pub struct Recording {
    pub json: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

pub fn shipped(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/traces").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn shipped_json(name: &str) -> Value {
    serde_json::from_slice(&shipped(name)).expect("shipped JSON")
}

impl Recording {
    /// The named cases of the shipped data, without groups, with only the tensors that they use.
    pub fn of(ids: &[&str]) -> Recording {
        let mut cases = Vec::new();
        let mut tensors = BTreeMap::new();
        for (json, file) in [("manifest.json", "traces.safetensors"), ("edge.json", "edge.safetensors")] {
            let bytes = shipped(file);
            let all = SafeTensors::deserialize(&bytes).expect("shipped tensors");
            for case in shipped_json(json)["cases"].as_array().expect("cases") {
                if !ids.contains(&case["id"].as_str().expect("id")) {
                    continue;
                }
                for (_, tensor) in
                    ["inputs", "outputs"].iter().flat_map(|k| case[k].as_object().expect("names"))
                {
                    let name = tensor.as_str().expect("tensor name");
                    if let Ok(view) = all.tensor(name) {
                        tensors.insert(name.to_string(), Tensor::from(view));
                    }
                }
                cases.push(case.clone());
            }
        }
        assert_eq!(cases.len(), ids.len(), "every id is there");
        Recording { json: serde_json::json!({ "files": ["t.safetensors"], "cases": cases }), tensors }
    }

    /// The only case, or the first.
    pub fn case(&mut self) -> &mut Value {
        &mut self.json["cases"][0]
    }

    /// The tensor behind an input or output of the first case.
    pub fn tensor(&mut self, kind: &str, name: &str) -> &mut Tensor {
        let tensor = self.json["cases"][0][kind][name].as_str().expect("a tensor").to_string();
        self.tensors.get_mut(&tensor).expect("there")
    }

    pub fn safetensors(&self) -> Vec<u8> {
        let mut views = Vec::new();
        for (name, t) in &self.tensors {
            let view = TensorView::new(t.dtype, t.shape.clone(), &t.data).expect("data fits shape");
            views.push((name.as_str(), view));
        }
        safetensors::serialize(views, None).expect("serialises")
    }

    pub fn write(&self, dir: &Path) {
        std::fs::write(dir.join("manifest.json"), self.json.to_string()).expect("writes");
        std::fs::write(dir.join("t.safetensors"), self.safetensors()).expect("writes");
    }
}

impl From<TensorView<'_>> for Tensor {
    fn from(view: TensorView<'_>) -> Tensor {
        Tensor { dtype: view.dtype(), shape: view.shape().to_vec(), data: view.data().to_vec() }
    }
}

/// A directory that goes away with the test.
pub fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

pub fn abreast(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_abreast")).args(args).output().expect("the program starts")
}

/// Replays a recording: exit status and the JSON object.
pub fn replay(recording: &Recording, name: &str) -> (Option<i32>, Value) {
    let dir = temporary();
    recording.write(dir.path());
    let out = abreast(&["replay", dir.path().to_str().expect("a path"), "--json"]);
    let json = serde_json::from_slice(&out.stdout);
    let json = json.unwrap_or_else(|e| panic!("{name}: {e}: {}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code(), json)
}

pub fn ids(cases: &Value) -> BTreeSet<String> {
    let id = |case: &Value| case["id"].as_str().expect("id").to_string();
    cases.as_array().expect("cases").iter().map(id).collect()
}
