//! Access to the elements of a drawing.

use nccl_bench::command::plot::{self, Metric, PlotOptions};
use record::Run;
use roxmltree::{Document, Node, ParsingOptions};

use crate::runs::{named, options};

pub(crate) fn parse(text: &str) -> Document<'_> {
    let options = ParsingOptions { allow_dtd: true, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).unwrap()
}

pub(crate) fn has_class(node: Node, class: &str) -> bool {
    node.attribute("class").is_some_and(|classes| classes.split(' ').any(|each| each == class))
}

pub(crate) fn all<'a, 'i>(node: Node<'a, 'i>, class: &str) -> Vec<Node<'a, 'i>> {
    node.descendants().filter(|each| has_class(*each, class)).collect()
}

pub(crate) fn text_of(node: Node) -> String {
    node.descendants().filter(Node::is_text).filter_map(|each| each.text()).collect()
}

/// The legends' entries.
pub(crate) fn entries(node: Node) -> Vec<String> {
    all(node, "entry").into_iter().map(|entry| text_of(entry).trim().to_owned()).collect()
}

/// The numbers in an attribute.
pub(crate) fn numbers(text: &str) -> Vec<f64> {
    text.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-'))
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().unwrap())
        .collect()
}

pub(crate) fn place(point: Node) -> (f64, f64) {
    let found = numbers(point.attribute("transform").unwrap());
    (found[0], found[1])
}

pub(crate) fn tooltip(point: Node) -> String {
    let title = point.children().find(|child| child.tag_name().name() == "title");
    text_of(title.unwrap())
}

/// The ticks of an axis with a label, as label and position.
pub(crate) fn ticks(chart: Node, class: &str) -> Vec<(String, f64)> {
    let [axis] = all(chart, class)[..] else { panic!("one axis of {class}") };
    let attribute = if class == "sizes" { "x" } else { "y" };
    axis.children()
        .filter(Node::is_element)
        .map(|tick| (text_of(tick), tick.attribute(attribute).unwrap().parse::<f64>().unwrap()))
        .collect()
}

/// The position of a value, from two ticks.
pub(crate) fn between(value: f64, (from, at_from): (f64, f64), (to, at_to): (f64, f64)) -> f64 {
    at_from + (value - from) / (to - from) * (at_to - at_from)
}

/// Positions of all points in the plot area, and in each series from left to right.
pub(crate) fn assert_inside(chart: Node) {
    let [grid, ..] = all(chart, "grid")[..] else { panic!("a grid") };
    let found = numbers(grid.attribute("d").unwrap());
    assert!(!found.is_empty());
    let narrow = has_class(chart, "narrow");
    let (left, right, top, bottom) =
        if narrow { (60.0, 352.0, 26.0, 240.0) } else { (64.0, 628.0, 26.0, 306.0) };
    for series in all(chart, "series") {
        let places: Vec<_> = all(series, "point").into_iter().map(place).collect();
        assert!(places.windows(2).all(|pair| pair[0].0 < pair[1].0), "{places:?}");
        for (x, y) in places {
            assert!((left..=right).contains(&x) && (top..=bottom).contains(&y), "({x}, {y})");
        }
        for band in all(series, "band") {
            for pair in numbers(band.attribute("d").unwrap()).chunks(2) {
                assert!((left..=right).contains(&pair[0]) && (top..=bottom).contains(&pair[1]), "{pair:?}");
            }
        }
    }
    for class in ["sizes", "values"] {
        let places: Vec<f64> = ticks(chart, class).into_iter().map(|(_, at)| at).collect();
        let sign = if class == "sizes" { 1.0 } else { -1.0 };
        assert!(places.windows(2).all(|pair| (pair[1] - pair[0]) * sign > 13.0), "{class} {places:?}");
    }
}

pub(crate) fn one_chart(run: &Run, metric: Metric, change: impl FnOnce(&mut PlotOptions)) -> String {
    let mut options = PlotOptions { metrics: vec![metric], ..options() };
    change(&mut options);
    plot::render_svg(&named(&[("run", run)]), &options).unwrap()
}
