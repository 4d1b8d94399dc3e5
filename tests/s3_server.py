"""An S3 server that can be told to fail: moto's, behind a switch.

``PUT /switch?METHOD=STATUS`` answers every later request of that method for an object with the status (CREATE: a PUT on
condition that nothing is there); ``PUT /switch`` ends that. Requests that are signed with another access key than
``key`` are refused. The port is printed.
"""

import sys
from urllib.parse import parse_qsl

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

CODES = {"501": "NotImplemented"}
answers: dict[str, str] = {}
serve_s3 = DomainDispatcherApplication(create_backend_app)


def application(environ, start_response):
    if environ["PATH_INFO"] == "/switch":
        answers.clear()
        answers.update(parse_qsl(environ["QUERY_STRING"]))
        start_response("200 OK", [])
        return [b""]
    if "Credential=key/" not in environ.get("HTTP_AUTHORIZATION", "Credential=key/"):
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>InvalidAccessKeyId</Code><Message>who are you</Message></Error>"]
    method = "CREATE" if "HTTP_IF_NONE_MATCH" in environ else environ["REQUEST_METHOD"]
    status = answers.get(method)
    if status and environ["PATH_INFO"].count("/") > 1:
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start_response(f"{status} Told So", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{CODES.get(status, 'ToldSo')}</Code><Message>as told</Message></Error>".encode()]
    return serve_s3(environ, start_response)


server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.server_port, flush=True)
sys.stdout.close()
server.serve_forever()
