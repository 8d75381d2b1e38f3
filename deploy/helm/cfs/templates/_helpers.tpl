{{- define "cfs.labels" -}}
app.kubernetes.io/name: cfs
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "cfs.selector" -}}
app.kubernetes.io/name: cfs
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cfs.storeSecret" -}}
{{ .Values.store.existingSecret | default (printf "%s-store" .Release.Name) }}
{{- end }}

{{- define "cfs.tokensSecret" -}}
{{- if or .Values.tokens.existingSecret .Values.tokens.file -}}
{{ .Values.tokens.existingSecret | default (printf "%s-tokens" .Release.Name) }}
{{- end -}}
{{- end }}

{{- define "cfs.claim" -}}
{{- if or .Values.workspaces.existingClaim .Values.workspaces.create -}}
{{ .Values.workspaces.existingClaim | default (printf "%s-workspaces" .Release.Name) }}
{{- end -}}
{{- end }}
