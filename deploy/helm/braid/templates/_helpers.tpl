{{- define "braid.name" -}}
{{- if contains "braid" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-braid{{ end -}}
{{- end -}}

{{- define "braid.selector" -}}
app.kubernetes.io/name: braid
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "braid.labels" -}}
{{ include "braid.selector" . }}
app.kubernetes.io/part-of: braid
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* What a probe asks: gRPC's health service, or with TLS, which kubelet's gRPC lacks, the HTTP port. */}}
{{- define "braid.probe" -}}
{{- if .root.Values.tls.secret -}}
httpGet: {path: {{ eq .service "liveness" | ternary "/healthz" "/readyz" }}, port: http, scheme: HTTPS}
{{- else if .service -}}
grpc: {port: 8001, service: {{ .service }}}
{{- else -}}
grpc: {port: 8001}
{{- end }}
{{- with .timing }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "braid.kind" -}}
{{ .Values.fleet.enabled | ternary "Deployment" "StatefulSet" }}
{{- end -}}

{{/* Seconds of BRAID_SHUTDOWN_DELAY_SECONDS. */}}
{{- define "braid.delay" -}}
{{ get .Values.settings "BRAID_SHUTDOWN_DELAY_SECONDS" | default (.Values.fleet.enabled | ternary 10 0) }}
{{- end -}}

{{/* Seconds that a pod gets to end: longer than the server takes at most. */}}
{{- define "braid.grace" -}}
{{- $drain := get .Values.settings "BRAID_DRAIN_SECONDS" | default 30 | float64 -}}
{{- $needed := add 15 (ceil $drain | int64) (include "braid.delay" . | float64 | ceil | int64) -}}
{{- $given := .Values.terminationGracePeriodSeconds | default $needed | int64 -}}
{{- if lt $given (sub $needed 10) -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: the server takes up to %d (BRAID_SHUTDOWN_DELAY_SECONDS and BRAID_DRAIN_SECONDS, and a little)" $given (sub $needed 10)) -}}
{{- end -}}
{{ $given }}
{{- end -}}

{{/* Pods on machines of their own, where there are enough. */}}
{{- define "braid.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "braid.selector" . | nindent 12 }}
{{- end -}}
