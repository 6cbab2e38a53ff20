//! The picture of the README: what becomes of a kernel. This test writes it, with the targets that there are.

use std::fmt::Write as _;
use std::path::Path;

use peerwarp::codegen::family::Target;

const PICTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/start/kernel.svg");
/// The widest line that fits a box, by characters of about 6 units.
const LINE: usize = 33;

/// A box: left edge, middle, width, title and lines.
struct Part(u32, u32, u32, &'static str, Vec<String>);

impl Part {
    fn draw(&self, svg: &mut String) {
        let Part(x, y, width, title, lines) = self;
        let (middle, height) = (x + width / 2, 30 + 13 * lines.len() as u32);
        let top = y - height / 2;
        let shape = format!(r##"x="{x}" y="{top}" width="{width}" height="{height}" rx="4""##);
        writeln!(svg, r##"<rect {shape} fill="#f4f6f8" stroke="#57606a"/>"##).unwrap();
        let first = top + 19;
        writeln!(svg, "<text x=\"{middle}\" y=\"{first}\" font-weight=\"bold\">{title}</text>").unwrap();
        for (line, y) in lines.iter().zip((first + 15..).step_by(13)) {
            assert!(line.len() <= LINE, "{line}");
            writeln!(svg, "<text x=\"{middle}\" y=\"{y}\" font-size=\"11\">{line}</text>").unwrap();
        }
    }
}

/// The architectures of a backend, in lines that fit.
fn targets(backend: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for target in Target::all().filter(|target| target.backend() == backend) {
        let last = lines.last_mut().expect("one line at least");
        if last.len() + target.arch().len() + 3 > LINE {
            last.push(',');
            lines.push(target.arch().to_owned());
        } else {
            *last += if last.is_empty() { "" } else { ", " };
            *last += target.arch();
        }
    }
    lines
}

fn picture() -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 236\" font-family=\"sans-serif\" font-size=\"13\" \
         text-anchor=\"middle\">\n\
         <rect width=\"760\" height=\"236\" fill=\"white\"/>\n",
    );
    // From, through and to, as points of a line.
    for arrow in [
        "150,118 172,118",
        "302,118 320,118 320,40 342,40",
        "302,118 342,118",
        "302,118 320,118 320,196 342,196",
        "558,118 576,118 576,152 594,152",
        "558,196 576,196 576,162 594,162",
    ] {
        let (x, y) = arrow.rsplit(' ').next().and_then(|end| end.split_once(',')).expect("a point");
        writeln!(svg, "<polyline points=\"{arrow}\" fill=\"none\" stroke=\"#57606a\"/>").unwrap();
        let x: u32 = x.parse().expect("a number");
        let y: u32 = y.parse().expect("a number");
        writeln!(svg, "<path d=\"M{} {y}l-8 -4v8z\" fill=\"#57606a\"/>", x + 4).unwrap();
    }
    let lines = |text: &str| text.split('\n').map(str::to_owned).collect::<Vec<_>>();
    let parts = [
        Part(8, 118, 142, "#[kernel] function", lines("and a configuration")),
        Part(176, 118, 126, "IR", lines("traced, verified")),
        Part(346, 40, 212, "checked", lines("ranks on the CPU, many schedules,\nfindings at your line")),
        Part(346, 118, 212, "CUDA", targets("cuda")),
        Part(346, 196, 212, "HIP", targets("hip")),
        Part(598, 157, 154, "pack", lines("cubins, code objects,\na manifest")),
    ];
    parts.iter().for_each(|part| part.draw(&mut svg));
    svg + "</svg>\n"
}

/// With `INSTA_UPDATE=always`, as for snapshots, the picture is written anew.
#[test]
fn the_picture_shows_the_targets() {
    let now = picture();
    if std::env::var("INSTA_UPDATE").is_ok_and(|how| how == "always") {
        std::fs::write(PICTURE, &now).unwrap();
    }
    let kept = std::fs::read_to_string(Path::new(PICTURE)).unwrap();
    assert!(kept == now, "docs/start/kernel.svg is of other targets: run this test with INSTA_UPDATE=always");
    assert!(Target::all().all(|target| kept.contains(target.arch())));
}
