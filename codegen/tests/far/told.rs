//! Far kernels in the text form and in words.

use peerwarp_codegen::dsl::prelude::Publish;
use peerwarp_codegen::ir::explain;

use super::world::{Post, traced};

fn assert_says(text: &str, words: &[&str]) {
    for said in words {
        assert!(text.contains(said), "`{said}` is not in\n{text}");
    }
}

#[test]
fn the_text_form_says_what_is_put_counted_and_awaited() {
    let each = traced(&Post::new(Publish::Each)).unwrap().to_string();
    assert_says(
        &each,
        &[
            "far inbox f32[288]",
            "far outbox f32[288]",
            "far counts u32[6]",
            "far_put @rows[",
            "; 16], counted in @rows_arrived[",
            "far_publish @rows_ready[",
            "] += 1 to all ranks",
            "far_wait @rows_arrived[",
            "; 1] -= 3 from rank ",
            "far_wait @rows_ready[0; 3] -= 1 from rank 0 on",
            "far_settle @rows_outbox",
        ],
    );
    let batch = traced(&Post::new(Publish::Batch)).unwrap().to_string();
    assert_says(&batch, &["; 16], published in @rows_arrived[", "far_publish @rows_arrived["]);
}

#[test]
fn the_description_says_it_in_words() {
    let told = explain(&traced(&Post::new(Publish::Batch)).unwrap()).to_string();
    assert_says(
        &told,
        &[
            "puts 64 B to `rows` on rank `peer`, by the card",
            "waits until puts have read `rows_outbox`",
            "takes `3`",
            "settles rows_outbox.",
            "signals `rows_ready[rank]` on all ranks, by the card, adding `1`",
        ],
    );
}
