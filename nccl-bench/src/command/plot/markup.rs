//! Well-formed XML text: SVG, and HTML that an XML parser can read, too.

use std::fmt::Display;

/// Attributes of an element, by name. Attributes with an empty value are left out.
pub(super) type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// Markup in the making, which grows by whole elements.
#[derive(Debug, Default)]
pub(super) struct Markup {
    text: String,
}

impl Markup {
    /// Writes an element around the output of `content`.
    pub(super) fn element(&mut self, name: &str, attributes: Attributes, content: impl FnOnce(&mut Self)) {
        self.start(name, attributes);
        self.text.push('>');
        content(self);
        self.text.push_str("</");
        self.text.push_str(name);
        self.text.push_str(">\n");
    }

    /// Writes an element with a text.
    pub(super) fn labelled(&mut self, name: &str, attributes: Attributes, text: &str) {
        self.element(name, attributes, |markup| markup.text(text));
    }

    /// Writes SVG's element for text at a position.
    pub(super) fn svg_text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        self.labelled("text", &[("class", &class), ("x", &Px(x)), ("y", &Px(y))], text);
    }

    /// Writes an element without content.
    pub(super) fn leaf(&mut self, name: &str, attributes: Attributes) {
        self.start(name, attributes);
        self.text.push_str("/>\n");
    }

    /// Writes text, escaped.
    pub(super) fn text(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.text.push_str("&amp;"),
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '"' => self.text.push_str("&quot;"),
                // XML cannot contain these.
                '\u{fffe}' | '\u{ffff}' => self.text.push(char::REPLACEMENT_CHARACTER),
                control if control.is_control() && !matches!(control, '\n' | '\t') => {
                    self.text.push(char::REPLACEMENT_CHARACTER);
                }
                other => self.text.push(other),
            }
        }
    }

    /// Writes markup as it is.
    pub(super) fn raw(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// The whole text.
    pub(super) fn finish(self) -> String {
        self.text
    }

    fn start(&mut self, name: &str, attributes: Attributes) {
        self.text.push('<');
        self.text.push_str(name);
        for (key, value) in attributes {
            let value = value.to_string();
            if !value.is_empty() {
                self.text.push(' ');
                self.text.push_str(key);
                self.text.push_str("=\"");
                self.text(&value);
                self.text.push('"');
            }
        }
    }
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

/// SVG's path through points: `M1 2L3 4`.
pub(super) fn path(points: impl IntoIterator<Item = (f64, f64)>) -> String {
    let points = points.into_iter().map(|(x, y)| format!("{} {}", Px(x), Px(y)));
    format!("M{}", points.collect::<Vec<_>>().join("L"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_xml_cannot_hold_is_escaped_or_replaced() {
        let mut markup = Markup::default();
        let value = "a<b&\"c\">\u{1b}\u{0}";
        markup.element("x", &[("y", &value)], |inner| inner.text("1 < 2\u{ffff}"));
        let text = markup.finish();
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
