//! The drawing as an SVG file with a style sheet of its own, for light and dark pages.

use diagnosis::topology::layout::{Anchor, Drawing, Shape};

use crate::command::markup::{Px, escaped, path};

/// Text near the start of each file, by which a later run knows that it may replace the file.
pub(super) const MARK: &str = "<!-- made by nccl-bench topo -->\n";

/// The file.
pub(super) fn write(drawing: &Drawing) -> String {
    let (width, height) = (drawing.width.ceil(), drawing.height.ceil());
    let shapes: String = drawing.shapes.iter().map(shape).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{MARK}\
         <svg xmlns=\"http://www.w3.org/2000/svg\" class=\"topo\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <style>\n{}</style>\n\
         <rect class=\"ground\" width=\"{width}\" height=\"{height}\"/>\n{shapes}</svg>\n",
        escaped(&drawing.description),
        include_str!("drawing.css"),
    )
}

fn shape(shape: &Shape) -> String {
    match shape {
        Shape::Box { class, frame, hint } => {
            let rectangle = format!(
                "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"",
                Px(frame.x),
                Px(frame.y),
                Px(frame.width),
                Px(frame.height),
                if *class == "node" { 10 } else { 5 },
            );
            match hint.is_empty() {
                true => format!("{rectangle}/>\n"),
                false => format!("{rectangle}><title>{}</title></rect>\n", escaped(hint)),
            }
        }
        Shape::Line { class, points } => {
            format!("<path class=\"{class}\" d=\"{}\"/>\n", path(points.iter().copied()))
        }
        Shape::Text { class, at: (x, y), anchor, size, text } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let (x, y, text) = (Px(*x), Px(*y), escaped(text));
            format!(
                "<text class=\"{class}\" x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}>{text}</text>\n"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use diagnosis::topology::layout::lay_out;
    use diagnosis::topology::{Dump, examine, read_dump};

    use super::*;

    #[test]
    fn the_file_is_well_formed_and_needs_nothing_else() {
        const XML: &str = r#"<system version="1"><cpu numaid="0" arch="&lt;x86 &amp; co&gt;">
            <pci busid="0000:10:00.0" class="0x060400">
              <pci busid="0000:11:00.0"><gpu dev="0" sm="90"><nvlink target="" count="18"/></gpu></pci>
              <pci busid="0000:12:00.0"><nic><net name="&lt;script&gt;&quot;" dev="0" speed="400000"/></nic></pci>
            </pci></cpu></system>"#;
        let Dump::Topology(topology) = read_dump(XML, "a<b>.xml").unwrap() else { panic!("no topology") };
        let text = write(&lay_out(&topology, &examine(Some(&topology), None).findings));
        let document = roxmltree::Document::parse(&text).unwrap();
        let texts: Vec<&str> = (document.descendants())
            .filter(|node| node.has_tag_name(("http://www.w3.org/2000/svg", "text")))
            .filter_map(|node| node.text())
            .collect();
        for wanted in ["Topology: a<b>.xml", "GPU0", "NIC0 <script>\"", "NVSwitch", "NV18"] {
            assert!(texts.contains(&wanted), "{wanted}: {texts:?}");
        }
        assert_eq!(document.descendants().filter(|node| node.has_tag_name("script")).count(), 0);
        assert!(!text.contains("http://") || text.matches("http://").count() == 1, "refers to another file");
        assert!(text[..256].contains(MARK));
        let classes: std::collections::BTreeSet<&str> = (document.descendants())
            .filter_map(|node| node.attribute("class"))
            .flat_map(str::split_whitespace)
            .collect();
        let sheet = include_str!("drawing.css");
        for class in classes.into_iter().filter(|class| *class != "bar") {
            assert!(sheet.contains(&format!(".{class}")), "{class} has no style");
        }
    }
}
