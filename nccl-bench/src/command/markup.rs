//! Parts of well-formed XML text: SVG, and HTML in the syntax of XML.

use std::fmt::Display;

/// Escapes a text for an element or an attribute.
pub(super) fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML cannot contain these.
            '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            control if control.is_control() && !matches!(control, '\n' | '\t') => {
                escaped.push(char::REPLACEMENT_CHARACTER);
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// Returns SVG's element for text at a position.
pub(super) fn svg_text(class: &str, (x, y): (f64, f64), text: &str) -> String {
    format!("<text class=\"{class}\" x=\"{}\" y=\"{}\">{}</text>\n", Px(x), Px(y), escape_xml(text))
}

/// A coordinate with at most two decimals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Px(pub(super) f64);

impl Display for Px {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rounded = (self.0 * 100.0).round() / 100.0;
        // Not "-0".
        write!(formatter, "{}", if rounded == 0.0 { 0.0 } else { rounded })
    }
}

/// Returns SVG's path through points: `M1 2L3 4`.
pub(super) fn svg_path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let points = points.into_iter().map(|(x, y)| format!("{} {}", Px(x), Px(y)));
    format!("M{}", points.collect::<Vec<_>>().join("L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_hold_is_escaped_or_replaced() {
        let value = escape_xml("a<b&\"c\">\u{1b}\u{0}");
        let text = format!("<x y=\"{value}\">{}</x>", escape_xml("1 < 2\u{ffff}"));
        let document = roxmltree::Document::parse(&text).unwrap();
        let root = document.root_element();
        assert_eq!(root.attribute("y"), Some("a<b&\"c\">\u{fffd}\u{fffd}"));
        assert_eq!(root.text(), Some("1 < 2\u{fffd}"));
    }

    #[test]
    fn coordinates_are_short() {
        assert_eq!(Px(1.0 / 3.0).to_string(), "0.33");
        assert_eq!((Px(-0.001).to_string(), Px(12.0).to_string()), ("0".to_owned(), "12".to_owned()));
    }
}
