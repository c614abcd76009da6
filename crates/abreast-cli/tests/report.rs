//! `abreast report` as its users meet it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn report(arguments: &[&Path], output: &Path) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_abreast"));
    program.arg("report").args(arguments).arg("-o").arg(output).output().unwrap()
}

/// Two shapes of one operation and one of another.
fn figures(name: &str) -> String {
    let figure = |op: &str, shape: &str, rows: usize, us: f64| {
        format!(
            r#"{{"op": "{op}", "shape": "{shape}", "rows": {rows}, "median_us": {us}, "warm_us": {}, "floor_us": 0.5}}"#,
            us * 0.9
        )
    };
    let results = [
        figure("top_k", "n 2048 random", 1, 2.0),
        figure("top_k", "n 2048 random", 8, 4.0),
        figure("top_k", "n 16384 random", 8, 5.0),
        figure("gather_rows", "n 512", 1, 0.7),
    ];
    let machine = r#"{"cpu": "c", "gpu": {"name": "NVIDIA H200"}, "version": "0.1.0", "date": "2026-11-30"}"#;
    format!(
        r#"{{"name": "{name}", "machine": {machine}, "method": "fast", "results": [{}]}}"#,
        results.join(", ")
    )
}

const PEERS: &str = "gpu,op,shape,rows,peer,us,goal_us,bare_us
NVIDIA H200,top_k,n 2048 random,1,SGLang,2.5,1.5,1.1
NVIDIA H200,top_k,n 2048 random,8,SGLang,3.0,3.5,1.7
";

#[test]
fn a_page_has_a_plot_and_a_table_for_every_shape() {
    let (ours, peers) = (file("report-ours.json", &figures("x")), file("report-peers.csv", PEERS));
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    let output = report(&[&ours, Path::new("--peers"), &peers], &page);
    assert!(output.status.success(), "{output:?}");
    let text = std::fs::read_to_string(page).unwrap();
    let count = |what: &str| text.matches(what).count();
    assert_eq!(
        [count("<svg"), count("</svg>"), count("<table>"), count("<h3>"), count("<h2>")],
        [3, 3, 3, 3, 2]
    );
    assert_eq!([count("<div"), count("<section>")], [count("</div>"), count("</section>")]);
    for part in [
        "NVIDIA H200, c, method fast, abreast 0.1.0, 2026-11-30",
        "report-ours",
        "bare reads",
        "floor",
        "rows",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Faster than the peer with one row, slower with eight; slower than the goal with both.
    let line = |rows: usize| text.lines().find(|l| l.contains(&format!("<tr><td>{rows}</td>"))).unwrap();
    assert!(
        line(1).contains(
            "<td>2.50</td><td class=\"better\">0.80</td><td>1.50</td><td class=\"worse\">1.33</td>"
        )
    );
    assert!(
        line(8)
            .contains("<td>3.00</td><td class=\"worse\">1.33</td><td>3.50</td><td class=\"worse\">1.14</td>")
    );
    // Nothing is fetched and nothing runs.
    for part in ["<script", "http-equiv", "src=", "href=", "url(", "@import"] {
        assert!(!text.contains(part), "{part}");
    }
}

/// Names are other people's.
#[test]
fn names_are_text_to_a_browser() {
    let hostile = figures("<script>").replace("n 16384 random", "<img src=x onerror=alert(1)>");
    let hostile = hostile.replace("NVIDIA H200", "</li><script>alert(2)</script>");
    let peers = PEERS.replace("SGLang", "<b>").replace("NVIDIA H200", "<i>");
    let (ours, peers) = (file("report-<u>.json", &hostile), file("report-hostile.csv", &peers));
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-hostile.html");
    assert!(report(&[&ours, Path::new("--peers"), &peers], &page).status.success());
    let text = std::fs::read_to_string(page).unwrap();
    for part in ["<script", "<img", "<i>", "<u>", "<b><"] {
        assert!(!text.contains(part), "{part}");
    }
    assert!(text.contains("&lt;img src=x onerror=alert(1)&gt;"));
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let good = file("report-good.json", &figures("x"));
    let broken = file("report-broken.json", "{");
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-none.html");
    let nowhere = Path::new("no/such/folder/report.html");
    let cases: [(&[&Path], &Path, &str); 3] = [
        (&[&broken], &page, "report-broken.json: not a report of figures"),
        (&[&good, Path::new("--peers"), Path::new("no.csv")], &page, "no.csv: "),
        (&[&good], nowhere, "no/such/folder/report.html: "),
    ];
    for (arguments, output, want) in cases {
        let output = report(arguments, output);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        assert!(text.contains(want), "{text}");
    }
    assert!(!page.exists());
}

/// The widest axis that a report can ask for: it ends, and what is outside is refused with the file's name.
#[test]
fn a_plot_holds_every_time_that_a_report_may_have() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("report-wide.html");
    let wide = |most: &str| {
        let text = figures("x").replace("\"median_us\": 2,", &format!("\"median_us\": {most},"));
        let ours = file("report-wide.json", &text.replace("\"floor_us\": 0.5", "\"floor_us\": 1e-12"));
        report(&[&ours], &page)
    };
    let output = wide("1e12");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(std::fs::read_to_string(&page).unwrap().matches("</svg>").count(), 3);
    for most in ["1e306", "1e308"] {
        let output = wide(most);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), text.lines().count()), (Some(2), 1), "{text}");
        let want = format!(
            "report-wide.json: top_k n 2048 random rows 1: median_us must be 1e-12 to 1e12, got {most}\n"
        );
        assert!(text.ends_with(&want), "{text}");
    }
}

/// Whatever a file is called, and whichever of those that are read it is.
#[test]
fn what_is_read_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (ours, more, peers) = (at("ours.json"), at("more.json"), at("peers.csv"));
    let texts = [(&ours, figures("x")), (&more, figures("y")), (&peers, PEERS.into())];
    texts.iter().for_each(|(path, text)| std::fs::write(path, text).unwrap());
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::hard_link(&ours, at("hard.html")).unwrap();
    let mut outputs = vec![(ours.clone(), &ours), (more.clone(), &more), (peers.clone(), &peers)];
    outputs.push((at("folder/../ours.json"), &ours));
    if cfg!(unix) {
        outputs.push((at("hard.html"), &ours));
    }
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("peers.csv", at("soft.html")).unwrap();
        outputs.push((at("soft.html"), &peers));
    }
    for (output, input) in outputs {
        let got = report(&[&ours, &more, Path::new("--peers"), &peers], &output);
        let want = format!(
            "abreast: {}: must be another file than {}, which the page is made of\n",
            output.display(),
            input.display()
        );
        assert_eq!((got.status.code(), String::from_utf8(got.stderr).unwrap()), (Some(2), want));
        for (path, text) in &texts {
            assert_eq!(&std::fs::read_to_string(path).unwrap(), text, "{}", path.display());
        }
    }
    // Another file may be there already, and nothing is written beside a table.
    for _ in 0..2 {
        assert!(report(&[&ours, Path::new("--peers"), &peers], &at("page.html")).status.success());
    }
    std::fs::copy(&ours, at("report.html")).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_abreast"));
    program.args(["report", "--markdown", "report.html"]).current_dir(folder.path());
    assert!(program.output().unwrap().status.success());
}

/// One operation a file, as a run in parts leaves them: a line a shape, and what the peer does faster is bold.
#[test]
fn a_table_has_a_line_for_every_shape_of_a_run() {
    let whole = figures("x");
    let part = |name: &str, op: &str| {
        let mut report: serde_json::Value = serde_json::from_str(&whole).unwrap();
        report["results"].as_array_mut().unwrap().retain(|figure| figure["op"] == op);
        file(name, &report.to_string())
    };
    let (first, second) = (part("report-a.json", "top_k"), part("report-b.json", "gather_rows"));
    let peers = file("report-markdown.csv", PEERS);
    let output = Command::new(env!("CARGO_BIN_EXE_abreast"))
        .args(["report", "--markdown"])
        .args([&first, &second, Path::new("--peers"), &peers])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().skip(2).collect();
    let wanted = [
        "| top_k | n 2048 random | 1 / 8 | 0.50 / 0.50 | 2.50 / 3.00 | 1.50 / 3.50 | 2.00 / **4.00** | 0.80 / 1.33 | 1.33 / 1.14 | 4.00 / 8.00 | 1.80 / 3.60 |",
        "| top_k | n 16384 random | 8 | 0.50 |  |  | 5.00 |  |  | 10 | 4.50 |",
        "| gather_rows | n 512 | 1 | 0.50 |  |  | 0.70 |  |  | 1.40 | 0.63 |",
    ];
    assert_eq!(lines, wanted);
}
