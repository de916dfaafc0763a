use diagnosis::examination::{Body, Cell, Examination, Grade, Health, Matrix, Section};
use diagnosis::finding::{Action, Evidence, Finding, Severity};

use super::*;

/// A text with harmful characters for a terminal, XML and HTML.
const HOSTILE: &str = "\u{1b}[2J\u{0}<script>alert('&\"')</script>\u{202e}\r\nnext]]>";

fn evidence(text: &str) -> Evidence {
    Evidence {
        place: "job.log".into(),
        line: Some(24),
        rank: Some(3),
        host: Some("a".into()),
        text: text.into(),
    }
}

fn finding(severity: Severity, diagnosis: &str) -> Finding {
    Finding {
        cause: Some("the cause".into()),
        remedy: Some("first\nsecond".into()),
        action: Action::Reboot,
        ranks: vec![0, 1, 2, 3, 7],
        evidence: vec![evidence("the text")],
        occurrences: 5,
        ..Finding::new("a-rule", severity, diagnosis)
    }
}

fn examination(findings: Vec<Finding>, proof: &[&str]) -> Examination {
    let proof = proof.iter().map(|&text| text.to_owned()).collect();
    Examination { findings, proof, ..Examination::new("log") }
}

fn square(count: usize) -> Matrix {
    let cell = |row, column| match row == column {
        true => Cell::default(),
        false => Cell { text: "NVL".into(), grade: Grade::Fastest },
    };
    Matrix {
        labels: (0..count).map(|label| label.to_string()).collect(),
        cells: (0..count).map(|row| (0..count).map(|column| cell(row, column)).collect()).collect(),
        legend: vec![("NVL".into(), "NVLink".into())],
    }
}

fn text_of(examinations: &[Examination]) -> String {
    text::render_text(examinations, &text::Style { verbose: true, ..text::Style::default() })
}

#[test]
fn the_first_line_is_the_verdict_of_the_worst_finding() {
    let advice = finding(Severity::Advice, "something to improve");
    let broken = finding(Severity::Broken, "EFA was asked for but you are on TCP.");
    let found = [examination(vec![advice, broken], &["a proof"])];
    let text = text_of(&found);
    assert_eq!(text.lines().next(), Some("BROKEN: EFA was asked for but you are on TCP"));
    assert!(text.find("\n1. broken [a-rule]\n").unwrap() < text.find("2. advice: ").unwrap(), "{text}");
    assert!(text.contains("   > job.log:24, rank 3, host a: the text\n   > and 4 more\n"), "{text}");
    assert!(text.contains("   Concerns: ranks 0-3, 7\n"), "{text}");
    assert!(text.contains("   Remedy:   first\n             second\n"), "{text}");
    assert!(text.contains("   Node:     reboot the node\n"), "{text}");
}

#[test]
fn healthy_needs_proof_and_says_it() {
    let proof = "NVLink P2P between all 56 pairs of 8 ranks";
    assert_eq!(verdict_line(&[examination(vec![], &[proof])]), format!("HEALTHY: {proof}"));
    let mut doubtful = examination(vec![], &[]);
    assert_eq!(verdict_line(std::slice::from_ref(&doubtful)), "CANNOT TELL: nothing is proven");
    doubtful.unseen.push("no line of NCCL: set NCCL_DEBUG=INFO.".into());
    assert_eq!(verdict_line(&[doubtful]), "CANNOT TELL: no line of NCCL: set NCCL_DEBUG=INFO");
    assert_eq!(verdict_line(&[]), "CANNOT TELL: nothing is proven");
}

#[test]
fn a_measurement_that_passed_leads_and_the_reason_of_the_verdict_is_not_repeated() {
    let measurement = |proof: &[&str]| Examination { subject: "measurement", ..examination(vec![], proof) };
    let mut host = Examination { subject: "host", ..examination(vec![], &[]) };
    host.unseen = vec!["GPUs: NVML is not installed.".into(), "the kernel's messages".into()];
    let text = text_of(&[measurement(&["data verified on 2 ranks"]), host.clone()]);
    let first = "CANNOT TELL: data verified on 2 ranks; not seen: GPUs: NVML is not installed\n";
    assert!(text.starts_with(first), "{text}");
    assert!(text.ends_with("\nNot seen\n  - the kernel's messages\n"), "{text}");
    assert_eq!(text.matches("NVML").count(), 1, "{text}");
    let mut nothing = measurement(&[]);
    nothing.unseen.push("nothing was measured".into());
    assert_eq!(verdict_line(&[nothing, host]), "CANNOT TELL: nothing was measured");
}

#[test]
fn several_examinations_are_healthy_only_where_all_are() {
    let (good, doubtful) = (examination(vec![], &["a proof"]), examination(vec![], &[]));
    let slow = examination(vec![finding(Severity::Degraded, "slow")], &[]);
    assert_eq!(overall_health(&[good.clone(), good.clone()]), Health::Healthy);
    assert_eq!(overall_health(&[good.clone(), doubtful.clone()]), Health::CannotTell);
    assert_eq!(overall_health(&[good, doubtful, slow]), Health::Degraded);
}

#[test]
fn an_interrupted_examination_hides_nothing_and_cannot_tell() {
    let mut measurement = examination(vec![], &["a proof"]);
    measurement.interrupted = Some("SIGINT".to_owned());
    measurement.unseen.push("interrupted by SIGINT before the end".to_owned());
    let others = |severity| examination(vec![finding(severity, "no way.")], &[]);
    let found = |severity| [others(severity), measurement.clone()];
    assert_eq!(overall_health(&found(Severity::Broken)), Health::CannotTell);
    let interrupted = "CANNOT TELL: interrupted by SIGINT before the end";
    let text = text_of(&found(Severity::Broken));
    assert!(text.starts_with(&format!("{interrupted}; found until then: no way\n")), "{text}");
    assert!(text.contains("1. broken: no way. [a-rule]\n"), "{text}");
    assert!(!text.contains("Not seen"), "the verdict says it: {text}");
    assert_eq!(verdict_line(&found(Severity::Advice)), interrupted);
    let json: serde_json::Value =
        serde_json::from_str(&json::render_json(&found(Severity::Broken)).unwrap()).unwrap();
    let examinations = &json["examinations"];
    assert_eq!((&json["health"], &examinations[1]["interrupted"]), (&"cannot_tell".into(), &"SIGINT".into()));
    assert_eq!((&examinations[0]["health"], examinations[0].get("interrupted")), (&"broken".into(), None));
}

#[test]
fn hostile_text_does_not_reach_the_terminal() {
    let mut hostile = finding(Severity::Unknown, HOSTILE);
    hostile.evidence = vec![evidence(HOSTILE)];
    let mut found = examination(vec![hostile], &[HOSTILE]);
    let facts = Body::Facts(vec![(HOSTILE.into(), HOSTILE.into())]);
    found.sections.push(Section { title: HOSTILE.into(), body: facts });
    let table = Body::Table {
        columns: vec![HOSTILE.into(), "b".into()],
        rows: vec![vec![HOSTILE.into(), "c".into()]],
    };
    found.sections.push(Section { title: "t".into(), body: table });
    found.sections.push(Section { title: "l".into(), body: Body::Lines(vec![HOSTILE.into()]) });
    for width in [None, Some(10), Some(80)] {
        let style = text::Style { colour: false, width, verbose: true };
        let text = text::render_text(std::slice::from_ref(&found), &style);
        let bad = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
        assert_eq!(text.chars().find(|&character| bad(character)), None, "{text:?}");
        assert!(text.contains("\\u{1b}[2J"), "{text}");
    }
}

#[test]
fn hostile_text_is_escaped_in_xml_and_html() {
    let mut hostile = finding(Severity::Broken, HOSTILE);
    hostile.evidence = vec![evidence(HOSTILE)];
    hostile.rule = HOSTILE.into();
    let mut found = examination(vec![hostile], &[HOSTILE]);
    let mut matrix = square(2);
    matrix.labels = vec![HOSTILE.into(), HOSTILE.into()];
    matrix.cells[0][1].text = HOSTILE.into();
    matrix.legend = vec![(HOSTILE.into(), HOSTILE.into())];
    found.sections.push(Section { title: HOSTILE.into(), body: Body::Matrix(matrix) });
    let page = html::render_page(std::slice::from_ref(&found));
    let page = parsed(&page);
    assert!(!page.descendants().any(|node| node.has_tag_name("script")));
    let xml = junit::render_junit(&[found]);
    let xml = roxmltree::Document::parse(&xml).unwrap();
    let failure = xml.descendants().find(|node| node.has_tag_name("failure")).unwrap();
    assert!(failure.text().unwrap().contains("<script>alert"), "{failure:?}");
}

/// Parses an HTML page as XML.
fn parsed(page: &str) -> roxmltree::Document<'_> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..roxmltree::ParsingOptions::default() };
    roxmltree::Document::parse_with_options(page, options).unwrap()
}

#[test]
fn the_page_has_the_matrix_of_many_ranks_and_loads_nothing() {
    let mut found = examination(vec![], &["a proof"]);
    found.sections.push(Section { title: "Transport".into(), body: Body::Matrix(square(64)) });
    let page = html::render_page(&[found]);
    let parsed = parsed(&page);
    let shapes = parsed.descendants().filter(|node| node.attribute("class") == Some("fastest")).count();
    // Each row has a shape on each side of the diagonal, except for the first and the last.
    assert_eq!(shapes, 2 * 64 - 2);
    let titles: Vec<_> = parsed
        .descendants()
        .filter(|node| node.has_tag_name("title"))
        .filter_map(|node| node.text())
        .collect();
    assert!(titles.contains(&"63 → 0 to 62: NVL"), "{titles:?}");
    let loads = ["src", "href", "srcset", "data"];
    assert!(!parsed.descendants().any(|node| loads.iter().any(|name| node.attribute(*name).is_some())));
    assert!(!page.contains("url(") && !page.contains("@import"));
}

#[test]
fn small_matrices_are_whole_and_large_ones_are_counted() {
    assert_eq!(matrix::matrix_lines(&square(2)), ["   0    1", "0  .    NVL", "1  NVL  .", "NVL  NVLink"]);
    let lines = matrix::matrix_lines(&square(17));
    assert_eq!(lines[0], "NVL  272 pairs");
}

#[test]
fn pipelines_fail_on_findings_and_on_missing_proof() {
    let count = |found: Examination, name: &str| {
        let text = junit::render_junit(&[found]);
        let parsed = roxmltree::Document::parse(&text).unwrap();
        parsed.root_element().attribute(name).unwrap().to_owned()
    };
    let degraded = || examination(vec![finding(Severity::Degraded, "slow")], &["a proof"]);
    assert_eq!((count(degraded(), "tests"), count(degraded(), "failures")), ("2".into(), "1".into()));
    let healthy = || examination(vec![finding(Severity::Advice, "better")], &["a proof"]);
    assert_eq!((count(healthy(), "failures"), count(healthy(), "errors")), ("0".into(), "0".into()));
    assert_eq!(count(examination(vec![], &[]), "errors"), "1");
    assert_eq!(count(examination(vec![finding(Severity::Unknown, "?")], &["a proof"]), "errors"), "1");
}

#[test]
fn pipelines_find_a_case_again_by_its_name() {
    let names = |proof: &str, diagnosis: &str| {
        let text = junit::render_junit(&[examination(
            vec![finding(Severity::Degraded, diagnosis)],
            &[proof, "more"],
        )]);
        let parsed = roxmltree::Document::parse(&text).unwrap();
        let cases = parsed.descendants().filter(|node| node.has_tag_name("testcase"));
        cases.map(|case| case.attribute("name").unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("data verified on 2 ranks", "2 of 8"), ["proof", "a-rule"]);
    assert_eq!(names("data verified on 4 ranks", "3 of 8"), ["proof", "a-rule"]);
}

#[test]
fn json_has_the_health_of_each_examination() {
    let found = [examination(vec![], &["a proof"]), examination(vec![finding(Severity::Broken, "no")], &[])];
    let text = json::render_json(&found).unwrap();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&value["schema_version"], &value["health"]), (&1.into(), &"broken".into()));
    assert_eq!(value["examinations"][0]["health"], "healthy");
    assert_eq!(value["examinations"][1]["findings"][0]["evidence"][0]["line"], 24);
}

#[test]
fn lines_keep_within_the_terminal() {
    let words = "word ".repeat(60);
    let mut found = examination(vec![finding(Severity::Broken, &words)], &[&words]);
    let rows = vec![vec![words.clone(), words.clone()]];
    let table = Body::Table { columns: vec!["a".into(), "b".into()], rows };
    found.sections.push(Section { title: "t".into(), body: table });
    for verbose in [false, true] {
        let style = text::Style { colour: false, width: Some(80), verbose };
        let text = text::render_text(std::slice::from_ref(&found), &style);
        let long: Vec<&str> = text.lines().filter(|line| line.len() > 80).collect();
        assert_eq!(long, [""; 0], "{text}");
    }
}

#[test]
fn the_short_text_fits_on_a_screen_and_says_what_it_leaves_out() {
    let mut first = finding(Severity::Broken, "EFA was asked for but you are on TCP.");
    first.evidence = vec![evidence(&"a long message ".repeat(30)); 4];
    first.consequences = first.evidence.clone();
    let words =
        "a sentence about a cause of a fault, as long as these sentences are in the rules of the files";
    first.cause = Some(words.to_owned());
    let second = finding(Severity::Degraded, "a second fault");
    let advice = finding(Severity::Advice, "something to improve");
    let mut found = examination(vec![first, second, advice], &[]);
    found.unseen = ["one", "two", "three"].map(str::to_owned).to_vec();
    let facts = Body::Facts(vec![("ranks".into(), "8".into())]);
    found.sections.push(Section { title: "Job".into(), body: facts });
    let style = text::Style { width: Some(80), ..text::Style::default() };
    let text = text::render_text(std::slice::from_ref(&found), &style);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 24, "{} lines:\n{text}", lines.len());
    let place = |words: &str| lines.iter().position(|line| line.contains(words)).unwrap();
    let order = ["BROKEN: EFA", "Cause:", "Remedy:", "> job.log:24", "2. degraded: a second", "- one"];
    assert!(order.map(place).is_sorted(), "{text}");
    assert!(!text.contains("- three") && !text.contains("improve") && !text.contains("Job"), "{text}");
    assert_eq!(lines.last(), Some(&"--verbose shows all findings, their evidence, and the facts."));
    // Longer texts leave less room for the messages, the lists and the next finding.
    for (count, has_second) in [(3, true), (7, false)] {
        found.findings[0].cause = Some([words; 9][..count].join(", "));
        let text = text::render_text(std::slice::from_ref(&found), &style);
        assert!(text.lines().count() <= 24, "{count}:\n{text}");
        assert_eq!(text.contains("2. degraded: a second"), has_second, "{text}");
        assert!(text.contains("> job.log:24") && text.contains("- one") && !text.contains("- two"), "{text}");
    }
    // The facts about a host or an environment were asked for, and nothing is left out.
    found.subject = "host";
    (found.findings, found.unseen) = (Vec::new(), Vec::new());
    let text = text::render_text(&[found], &style);
    assert!(text.contains("\nJob\n") && !text.contains("--verbose"), "{text}");
}

#[test]
fn foreign_files_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let output = Output { html: Some(path.clone()), ..Output::default() };
    std::fs::write(&path, "mine").unwrap();
    assert!(output.check_outputs(&[]).is_err());
    assert!(Output { force: true, ..output.clone() }.check_outputs(&[]).is_ok());
    assert!(Output { force: true, ..output.clone() }.check_outputs(std::slice::from_ref(&path)).is_err());
    std::fs::write(&path, html::render_page(&[])).unwrap();
    assert!(output.check_outputs(&[]).is_ok());
    std::fs::write(&path, junit::render_junit(&[])).unwrap();
    assert!(output.check_outputs(&[]).is_ok());
}
