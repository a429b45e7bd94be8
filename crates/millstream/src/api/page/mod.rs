//! The dashboard: one page with its scripts and styles, all in the binary. It loads nothing from other origins.

use std::{
    hash::{DefaultHasher, Hasher},
    sync::LazyLock,
};

use axum::{
    extract::{Path, Request},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

/// The answer to `GET /` for clients that are not browsers.
pub(super) const LIST: &str = "\
/health
/ready
/live
/metrics
/status
/events
/history/NODE
/nodes/NODE
/tap/NODE
/rejected
/rejected/NODE
/rejected/NODE/replay
/openapi.json
POST /reload
POST /rejected/NODE/replay
POST /channels/NAME/forget
POST /channels/NAME/skip
";

/// The page may load, run and request only files of this origin, and no other page may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// A file of the page.
struct Asset {
    name: &'static str,
    kind: &'static str,
    content: &'static str,
}

/// The files of the page; the first one is the page itself.
const ASSETS: [Asset; 17] = [
    asset("index.html", HTML, include_str!("index.html")),
    asset("style.css", CSS, include_str!("style.css")),
    asset("icon.svg", "image/svg+xml", include_str!("icon.svg")),
    asset("app.js", SCRIPT, include_str!("app.js")),
    asset("bench.js", SCRIPT, include_str!("bench.js")),
    asset("card.js", SCRIPT, include_str!("card.js")),
    asset("chart.js", SCRIPT, include_str!("chart.js")),
    asset("dom.js", SCRIPT, include_str!("dom.js")),
    asset("edges.js", SCRIPT, include_str!("edges.js")),
    asset("feed.js", SCRIPT, include_str!("feed.js")),
    asset("find.js", SCRIPT, include_str!("find.js")),
    asset("graph.js", SCRIPT, include_str!("graph.js")),
    asset("layout.js", SCRIPT, include_str!("layout.js")),
    asset("node.js", SCRIPT, include_str!("node.js")),
    asset("records.js", SCRIPT, include_str!("records.js")),
    asset("table.js", SCRIPT, include_str!("table.js")),
    asset("theme.js", SCRIPT, include_str!("theme.js")),
];

const fn asset(name: &'static str, kind: &'static str, content: &'static str) -> Asset {
    Asset {
        name,
        kind,
        content,
    }
}

/// The `ETag` of all files. It changes whenever a file changes. Until then, browsers can use the files in their cache.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    for asset in &ASSETS {
        hasher.write(asset.content.as_bytes());
    }
    format!("\"{:016x}\"", hasher.finish())
});

/// `GET /`: the page for a browser, otherwise a list of paths.
pub async fn root(headers: HeaderMap) -> Response {
    let accepts = headers.get_all(header::ACCEPT).iter();
    let mut accepts = accepts.filter_map(|value| value.to_str().ok());
    let mut response = match accepts.any(|value| value.contains("text/html")) {
        true => answer(&ASSETS[0], &headers),
        false => LIST.into_response(),
    };
    let vary = HeaderValue::from_static("accept");
    response.headers_mut().insert(header::VARY, vary);
    response
}

/// `GET /assets/NAME`.
pub async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match ASSETS.iter().find(|asset| asset.name == name) {
        Some(asset) => answer(asset, &headers),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

fn answer(asset: &Asset, headers: &HeaderMap) -> Response {
    let head = [
        (header::CONTENT_TYPE, asset.kind),
        (header::ETAG, &VERSION),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    let known = headers.get(header::IF_NONE_MATCH);
    if known.is_some_and(|known| known.as_bytes() == VERSION.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, head).into_response();
    }
    (head, asset.content).into_response()
}

/// Protects every answer against pages of other origins. The headers forbid browsers to guess the type of the answer, to show it in a
/// frame, or to let other origins read it.
pub async fn protect(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let cross_origin = HeaderName::from_static("cross-origin-resource-policy");
    let all = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (cross_origin, "same-origin"),
    ];
    for (name, value) in all {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    let caching = response.headers_mut().entry(header::CACHE_CONTROL);
    caching.or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maximum total size of the files. It is small, because a browser loads all files before it draws the first graph.
    const BYTES_MAX: usize = 200_000;

    #[test]
    fn the_page_is_small() {
        let bytes: usize = ASSETS.iter().map(|asset| asset.content.len()).sum();
        assert!(bytes < BYTES_MAX, "{bytes}");
    }

    #[test]
    fn the_page_refers_only_to_its_own_files() {
        for asset in &ASSETS {
            let text = asset.content;
            for quote in ["\"/assets/", "\"./"] {
                for part in text.split(quote).skip(1) {
                    let name = part.split('"').next().unwrap();
                    let is_there = ASSETS.iter().any(|asset| asset.name == name);
                    assert!(is_there, "{} names {name}", asset.name);
                }
            }
            let elsewhere = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!elsewhere.contains("://"), "{}", asset.name);
            // The policy forbids inline scripts and styles.
            for inline in ["<style", "style=\"", " onclick=", "innerHTML", "eval("] {
                assert!(!text.contains(inline), "{}: {inline}", asset.name);
            }
        }
    }

    #[tokio::test]
    async fn a_browser_gets_the_page_and_other_clients_the_list() {
        let page = |accept: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            root(headers)
        };
        let kind = |response: &Response| response.headers()[header::CONTENT_TYPE].clone();
        let browser = page("text/html,application/xhtml+xml;q=0.9").await;
        assert_eq!(kind(&browser), HTML);
        assert!(
            kind(&page("*/*").await)
                .to_str()
                .unwrap()
                .starts_with("text/plain")
        );
    }

    #[tokio::test]
    async fn a_file_that_the_browser_has_is_not_sent_again() {
        let mut headers = HeaderMap::new();
        let first = file(Path("app.js".to_owned()), headers.clone()).await;
        let version = first.headers()[header::ETAG].clone();
        headers.insert(header::IF_NONE_MATCH, version);
        let again = file(Path("app.js".to_owned()), headers.clone()).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        let none = file(Path("../mod.rs".to_owned()), headers).await;
        assert_eq!(none.status(), StatusCode::NOT_FOUND);
    }
}
