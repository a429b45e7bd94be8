//! `GET /openapi.json`: the description of the interface in OpenAPI 3.1. It is written by hand in `openapi.json`; a test compares
//! its routes with those of the router.

use std::sync::LazyLock;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};

/// The description, with a placeholder for the version of the program.
const DESCRIPTION: &str = include_str!("openapi.json");

/// Answers with the description.
pub async fn openapi() -> Response {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| DESCRIPTION.replace("$VERSION", env!("CARGO_PKG_VERSION")));
    ([(header::CONTENT_TYPE, "application/json")], &**TEXT).into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::api::page::LIST;

    /// The routes of the router, such as `GET /status`.
    fn routes() -> BTreeSet<String> {
        let source: String = include_str!("mod.rs").split_whitespace().collect();
        let mut routes = BTreeSet::new();
        for route in source.split(".route(\"").skip(1) {
            let (path, handlers) = route.split_once('"').unwrap();
            let handlers = handlers.split(".layer(").next().unwrap();
            for method in ["get", "post", "put", "delete", "patch"] {
                let calls = [",", ")."].map(|start| format!("{start}{method}("));
                if calls.iter().any(|call| handlers.contains(call)) {
                    routes.insert(format!("{} {path}", method.to_uppercase()));
                }
            }
        }
        routes
    }

    fn described() -> Value {
        serde_json::from_str(DESCRIPTION).unwrap()
    }

    #[test]
    fn every_route_is_described_and_every_described_route_exists() {
        let described = described();
        let mut all = BTreeSet::new();
        for (path, methods) in described["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                all.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        assert!(all.len() > 5);
        assert_eq!(all, routes());
    }

    #[test]
    fn the_list_for_programs_names_every_route() {
        let name = |part: &str| match part.strip_prefix('{') {
            Some(name) => name.trim_end_matches('}').to_uppercase(),
            None => part.to_owned(),
        };
        let routes = routes().into_iter().map(|route| {
            let parts: Vec<_> = route.split('/').map(name).collect();
            parts.join("/").trim_start_matches("GET ").to_owned()
        });
        // These two routes serve the dashboard. The list leaves them out.
        let routes = routes.filter(|route| route != "/" && !route.starts_with("/assets/"));
        let listed = LIST.lines().map(str::to_owned);
        assert_eq!(listed.collect::<BTreeSet<_>>(), routes.collect());
    }

    #[test]
    fn every_operation_has_a_summary_its_path_parameters_and_its_answers() {
        let described = described();
        assert_eq!(described["openapi"], "3.1.0");
        for (path, methods) in described["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let at = format!("{method} {path}");
                assert!(operation["summary"].is_string(), "{at}");
                let answers = operation["responses"].as_object().unwrap();
                for code in ["200", "401", "403"] {
                    assert!(answers.contains_key(code), "{at}: {code}");
                }
                let parameters = operation["parameters"].as_array();
                let mut parameters = parameters.into_iter().flatten();
                for part in path.split('/').filter_map(|part| part.strip_prefix('{')) {
                    let name = part.trim_end_matches('}');
                    let is_it = |it: &Value| {
                        it["name"] == name && it["in"] == "path" && it["required"] == true
                    };
                    assert!(parameters.any(is_it), "{at}: {name}");
                }
            }
        }
        let text = described.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(described.pointer(pointer).is_some(), "{pointer}");
        }
    }
}
