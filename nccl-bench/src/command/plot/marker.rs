//! Markers: the shape shows the algorithm, the filling the protocol.

use record::Algorithm;

/// Scale of markers in a chart with many points.
const SMALL: f64 = 0.6;

/// Returns a marker around the origin: a dot for an unknown algorithm, otherwise its shape, filled for the
/// protocol `simple` or none, hollow for `ll`, hollow with a dot for `ll128`.
pub(super) fn draw_marker(chosen: Option<&Algorithm>, small: bool) -> String {
    let scale = if small { SMALL } else { 1.0 };
    let Some(chosen) = chosen else { return format!("<circle r=\"{}\"/>", 2.5 * scale) };
    let protocol = chosen.protocol.as_deref().unwrap_or_default().to_ascii_lowercase();
    let class = if ["ll", "ll128"].contains(&&*protocol) { "mark hollow" } else { "mark" };
    let transform = if small { format!(" transform=\"scale({SMALL})\"") } else { String::new() };
    let dot = if protocol == "ll128" { format!("<circle r=\"{}\"/>", 0.9 * scale) } else { String::new() };
    format!("<path class=\"{class}\" d=\"{}\"{transform}/>{dot}", marker_outline(&chosen.algorithm))
}

/// Returns the outline of an algorithm of NCCL or of the host collectives. An algorithm of two levels,
/// `hierarchical+ring`, has the shape of its second level, between hosts, with a line below.
fn marker_outline(algorithm: &str) -> String {
    let name = algorithm.to_ascii_lowercase().replace(['_', ' ', '-'], "");
    match name.strip_prefix("hierarchical+") {
        Some(between) => format!("{}M-5 6H5V7.2H-5Z", algorithm_shape(between)),
        None => algorithm_shape(&name).to_owned(),
    }
}

fn algorithm_shape(name: &str) -> &'static str {
    match name {
        // A circle.
        "ring" => "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
        // A triangle.
        "tree" | "binomial" => "M0 -4.5L4.2 3H-4.2Z",
        // A square.
        "nvls" => "M-3.3 -3.3H3.3V3.3H-3.3Z",
        // A triangle pointing down.
        "nvlstree" => "M0 4.5L4.2 -3H-4.2Z",
        // A diamond.
        "collnetdirect" => "M0 -4.8L4.8 0L0 4.8L-4.8 0Z",
        // A hexagon.
        "collnetchain" => "M-4.5 0L-2.25 -3.9H2.25L4.5 0L2.25 3.9H-2.25Z",
        // A pentagon.
        "pat" => "M0 -4.8L4.6 -1.5L2.8 3.9H-2.8L-4.6 -1.5Z",
        // A plus.
        "p2p" | "direct" => "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
        // A flat bar.
        "board" => "M-5 -2H5V2H-5Z",
        // An hourglass.
        "pairwise" => "M-4 -4.4H4L-4 4.4H4Z",
        // A star of four points.
        "recursivedoubling" => "M0 -5.5L1.6 -1.6L5.5 0L1.6 1.6L0 5.5L-1.6 1.6L-5.5 0L-1.6 -1.6Z",
        // An upright bar.
        "recursivehalving" => "M-2 -5H2V5H-2Z",
        // A triangle pointing right.
        "bruck" => "M-3 -4.4L4.6 0L-3 4.4Z",
        // A cross.
        "rabenseifner" => {
            "M-4.2 -2.1L-2.1 -4.2L0 -2.1L2.1 -4.2L4.2 -2.1L2.1 0L4.2 2.1L2.1 4.2L0 2.1L-2.1 4.2L-4.2 \
             2.1L-2.1 0Z"
        }
        // Two steps.
        "hierarchical" => "M-4.8 4.2V0H-1.6V-4.2H1.6V0H4.8V4.2Z",
        // A triangle pointing left, for unknown algorithms.
        _ => "M3 -4.4L-4.6 0L3 4.4Z",
    }
}

#[cfg(test)]
mod tests {
    use collectives::fabric::Algorithm as HostAlgorithm;

    use super::*;

    #[test]
    fn no_two_algorithms_of_a_library_have_the_same_marker() {
        let nccl = ["ring", "tree", "nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat", "p2p"];
        let mut host: Vec<String> = HostAlgorithm::ALL.iter().map(|each| each.name().to_owned()).collect();
        let two_levels: Vec<String> = host.iter().map(|name| format!("hierarchical+{name}")).collect();
        host.extend(two_levels);
        for library in [nccl.map(str::to_owned).to_vec(), host] {
            let outlines: Vec<String> = library.iter().map(|name| marker_outline(name)).collect();
            for (index, one) in outlines.iter().enumerate() {
                assert_ne!(*one, marker_outline("another"), "{}", library[index]);
                for (other, name) in outlines[..index].iter().zip(&library) {
                    assert_ne!(one, other, "{} and {name}", library[index]);
                }
            }
        }
    }
}
